// Go's runtime as a benchmark program: goroutines that take work from a channel, merge into a map behind a
// mutex, and meet at the end of each of many short rounds.
//
// The number of workers is GOMAXPROCS. Idle Ps of the Go scheduler spin for a moment and then sleep, so a
// shortage of CPUs costs what the garbage collector and the lock holders lose when they are preempted.
package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
	"time"
)

const (
	roundsAtScaleOne = 400
	jobsPerRound     = 64
	hashesPerMerge   = 500 // divides hashesPerJob
	hashesPerJob     = 1500
)

// tally counts links by the low four bits of their first byte; the mutex is taken once per run of hashesPerMerge hashes.
type tally struct {
	mutex  sync.Mutex
	counts map[byte]uint64
	chain  uint64 // sum of the last round's links, and the seed of the next round
	first  uint64 // the same of the first round, which verify repeats
}

// hashJob hashes a chain that starts at seed, counts its links, and returns the last.
func hashJob(seed uint64, total *tally) uint64 {
	var block [sha256.Size]byte
	binary.LittleEndian.PutUint64(block[:], seed)
	local := make(map[byte]uint64) // garbage on purpose: the collector is part of the runtime
	for i := 0; i < hashesPerJob; i++ {
		block = sha256.Sum256(block[:])
		local[block[0]%16]++
		if i%hashesPerMerge == hashesPerMerge-1 {
			total.mutex.Lock()
			for first, count := range local {
				total.counts[first] += count
			}
			total.mutex.Unlock()
			local = make(map[byte]uint64)
		}
	}
	return binary.LittleEndian.Uint64(block[:])
}

// run does all rounds. A round's seeds depend on the sum of the round before, so rounds cannot overlap.
func run(rounds, workers int) *tally {
	total := &tally{counts: map[byte]uint64{}}
	jobs := make(chan uint64)
	answers := make(chan uint64, workers)
	for w := 0; w < workers; w++ {
		go func() {
			for seed := range jobs {
				answers <- hashJob(seed, total)
			}
		}()
	}
	for round := 0; round < rounds; round++ {
		base := total.chain
		go func() {
			for job := uint64(0); job < jobsPerRound; job++ {
				jobs <- base + job
			}
		}()
		var sum uint64
		for job := 0; job < jobsPerRound; job++ {
			sum += <-answers
		}
		total.chain = sum
		if round == 0 {
			total.first = sum
		}
	}
	close(jobs)
	return total
}

// verify checks that no count was lost and repeats the first round without goroutines.
func verify(total *tally, rounds int) bool {
	var hashes uint64
	for _, count := range total.counts {
		hashes += count
	}
	if hashes != uint64(rounds)*jobsPerRound*hashesPerJob {
		return false
	}
	var alone uint64
	unused := &tally{counts: map[byte]uint64{}}
	for job := uint64(0); job < jobsPerRound; job++ {
		alone += hashJob(job, unused)
	}
	return alone == total.first
}

// checksum is independent of the order in which the workers finished.
func checksum(total *tally) string {
	firsts := make([]int, 0, len(total.counts))
	for first := range total.counts {
		firsts = append(firsts, int(first))
	}
	sort.Ints(firsts)
	digest := sha256.New()
	for _, first := range firsts {
		fmt.Fprintf(digest, "%d:%d ", first, total.counts[byte(first)])
	}
	fmt.Fprintf(digest, "%d", total.chain)
	return fmt.Sprintf("%x", digest.Sum(nil)[:8])
}

func main() {
	scale := 1.0
	if len(os.Args) > 1 {
		var err error
		scale, err = strconv.ParseFloat(os.Args[1], 64)
		if err != nil || len(os.Args) > 2 || !(scale > 0 && scale <= 1000) {
			fmt.Fprintf(os.Stderr, "go_par: usage: go_par [SCALE], SCALE above 0 and at most 1000; got %v\n", os.Args[1:])
			os.Exit(2)
		}
	}
	workers := runtime.GOMAXPROCS(0)
	rounds := int(roundsAtScaleOne*scale + 0.5)
	if rounds < 1 {
		rounds = 1
	}
	fmt.Printf("app: go_par\nthreads: %d\n", workers)
	begun := time.Now()
	total := run(rounds, workers)
	took := time.Since(begun)

	verdict, code := "yes", 0
	if !verify(total, rounds) {
		verdict, code = "NO", 1
	}
	fmt.Printf("verified: %s\nchecksum: %s\ntime_s: %.3f\n", verdict, checksum(total), took.Seconds())
	os.Exit(code)
}
