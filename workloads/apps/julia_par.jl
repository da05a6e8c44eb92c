# Julia as a benchmark program: `Threads.@threads` loops and a sort by parts, in many short rounds.
#
# Parts are the same for any number of threads, and all sums are of whole numbers, so the checksum is, too.

const ROUNDS_AT_SCALE_ONE = 40
const NUMBERS = 200_000
const PARTS = 16

# A mixing of 64 bits: rounds of shift, exclusive or and multiply.
function mix(value::UInt64)
    for i in 0:63
        value = xor(value, value >> 31) * 0x9e3779b97f4a7c15 + 0x632be5ab
    end
    value
end

part(p) = (p-1)*NUMBERS÷PARTS+1:p*NUMBERS÷PARTS

function total(numbers)
    sums = zeros(UInt64, PARTS)
    Threads.@threads for p in 1:PARTS
        sums[p] = sum(view(numbers, part(p)))
    end
    sum(sums)
end

function merged(left, right)
    out = similar(left, length(left) + length(right))
    i = j = 1
    for k in eachindex(out)
        if j > length(right) || (i <= length(left) && left[i] <= right[j])
            out[k] = left[i]
            i += 1
        else
            out[k] = right[j]
            j += 1
        end
    end
    out
end

function sorted(numbers)
    parts = Vector{Vector{UInt64}}(undef, PARTS)
    Threads.@threads for p in 1:PARTS
        parts[p] = sort(numbers[part(p)])
    end
    while length(parts) > 1
        next = Vector{Vector{UInt64}}(undef, length(parts) ÷ 2)
        Threads.@threads for p in eachindex(next)
            next[p] = merged(parts[2p-1], parts[2p])
        end
        parts = next
    end
    parts[1]
end

function rounds(count)
    checksum = UInt64(0)
    verified = true
    numbers = Vector{UInt64}(undef, NUMBERS)
    for round in 1:count
        seed = checksum + UInt64(round)
        Threads.@threads for p in 1:PARTS
            for i in part(p)
                numbers[i] = mix(seed + UInt64(i))
            end
        end
        before = total(numbers)
        ordered = sorted(numbers)
        verified &= total(ordered) == before && issorted(ordered)
        checksum = mix(xor(checksum, before, ordered[NUMBERS÷2]))
    end
    checksum, verified
end

scale = length(ARGS) == 0 ? 1.0 : length(ARGS) == 1 ? something(tryparse(Float64, ARGS[1]), NaN) : NaN
if !(0 < scale <= 1000)
    println(stderr, "julia_par: usage: julia_par.jl [SCALE], SCALE above 0 and at most 1000; got ", ARGS)
    exit(2)
end
println("app: julia_par\nthreads: ", Threads.nthreads())
rounds(1) # compiles
begun = time_ns()
checksum, verified = rounds(max(1, round(Int, ROUNDS_AT_SCALE_ONE * scale)))
milliseconds = lpad(string((time_ns() - begun) ÷ 1_000_000), 4, '0')
println("verified: ", verified ? "yes" : "NO")
println("checksum: ", string(checksum, base = 16, pad = 16))
println("time_s: ", milliseconds[1:end-3], ".", milliseconds[end-2:end])
exit(verified ? 0 : 1)
