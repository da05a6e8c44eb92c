'use strict';
// Node as a benchmark program: one worker thread per CPU it believes in (hashing in JavaScript), while the main
// thread keeps libuv's own pool (UV_THREADPOOL_SIZE, 4 by default whatever the machine) busy with zlib and pbkdf2.
// Both kinds of threads sleep when idle.

const crypto = require('node:crypto');
const os = require('node:os');
const { promisify } = require('node:util');
const { Worker, isMainThread, parentPort } = require('node:worker_threads');
const zlib = require('node:zlib');

const ROUNDS_AT_SCALE_ONE = 150;
const JOBS_PER_ROUND = 16;
const STEPS_PER_JOB = 600_000;

/** A 32-bit mixing loop in plain JavaScript. */
function mix(seed) {
  let value = seed >>> 0;
  for (let i = 0; i < STEPS_PER_JOB; i++) {
    value = Math.imul(value ^ (value >>> 15), 0x2c1b3c6d) + i;
    value ^= value >>> 12;
  }
  return value >>> 0;
}

function worker() {
  parentPort.on('message', ({ job, seed }) => parentPort.postMessage({ job, value: mix(seed) }));
}

/** Hands `seeds` to whichever worker is free; resolves with the results in the order of the seeds. */
function spread(workers, seeds) {
  return new Promise((resolve, reject) => {
    const values = new Array(seeds.length);
    let next = 0;
    let open = seeds.length;
    const feed = (w) => {
      if (next < seeds.length) w.postMessage({ job: next, seed: seeds[next++] });
    };
    for (const w of workers) {
      w.removeAllListeners('message');
      w.removeAllListeners('error');
      w.on('error', reject);
      w.on('message', ({ job, value }) => {
        values[job] = value;
        if (--open === 0) resolve(values);
        else feed(w);
      });
      feed(w);
    }
  });
}

/** Deflates, inflates and derives keys on libuv's pool; resolves with a digest, or null after a bad round trip. */
async function poolWork(round) {
  const text = Buffer.from(`round ${round} of the pool `.repeat(6000));
  const keys = [0, 1, 2].map((i) => promisify(crypto.pbkdf2)(`key ${round} ${i}`, 'salt', 6000, 32, 'sha256'));
  const packed = await promisify(zlib.deflate)(text, { level: 9 });
  const unpacked = await promisify(zlib.inflate)(packed);
  const digest = crypto.createHash('sha256').update(packed);
  for (const key of await Promise.all(keys)) digest.update(key);
  return unpacked.equals(text) ? digest.digest() : null;
}

async function main() {
  const words = process.argv.slice(2);
  const scale = words.length === 0 ? 1 : Number(words[0]);
  if (words.length > 1 || !(scale > 0 && scale <= 1000)) {
    console.error(`node_pool: usage: node_pool.js [SCALE], SCALE above 0 and at most 1000; got ${words}`);
    process.exit(2);
  }
  const rounds = Math.max(1, Math.round(ROUNDS_AT_SCALE_ONE * scale));
  const threads = os.availableParallelism();
  console.log(`app: node_pool\nthreads: ${threads}\nstartup_s: ${process.uptime().toFixed(2)}`);
  const workers = Array.from({ length: threads }, () => new Worker(__filename));

  const begun = process.hrtime.bigint();
  const digest = crypto.createHash('sha256');
  let verified = true;
  let seed = 1;
  for (let round = 0; round < rounds; round++) {
    const seeds = Array.from({ length: JOBS_PER_ROUND }, (_, job) => seed + job);
    const [values, pooled] = await Promise.all([spread(workers, seeds), poolWork(round)]);
    verified = verified && pooled !== null && (round > 0 || values[3] === mix(seeds[3]));
    digest.update(Uint32Array.from(values));
    if (pooled !== null) digest.update(pooled);
    seed = values.reduce((sum, value) => (sum + value) >>> 0, 0);
  }
  const took = Number(process.hrtime.bigint() - begun) / 1e9;
  await Promise.all(workers.map((w) => w.terminate()));

  console.log(`verified: ${verified ? 'yes' : 'NO'}`);
  console.log(`checksum: ${digest.digest('hex').slice(0, 16)}`);
  console.log(`time_s: ${took.toFixed(3)}`);
  process.exitCode = verified ? 0 : 1;
}

if (isMainThread) main();
else worker();
