# R as a benchmark program: data.table (OpenMP by the system's libgomp, each region with a num_threads clause) sorts,
# groups and joins; parallel::mclapply computes in as many forked workers as R's own default (MC_CORES, else 2).
# Everything summed is whole numbers below 2^53, so results are the same for every number of threads.
# usage: Rscript r_table.R [SCALE]    above 0 and at most 100; 1 takes 2 to 4 s on two idle CPUs

words <- commandArgs(trailingOnly = TRUE)
scale <- if (length(words) == 0) 1 else suppressWarnings(as.numeric(words[1]))
if (length(words) > 1 || is.na(scale) || scale <= 0 || scale > 100) {
  message("r_table: usage: r_table.R [SCALE], SCALE above 0 and at most 100; got: ", paste(words, collapse = " "))
  quit(status = 2)
}
suppressPackageStartupMessages(library(data.table))
library(parallel)
invisible(setDTthreads(0)) # all CPUs, as its manual says; half of them otherwise

rows <- 400000L
groups <- 20000L
rounds <- max(1L, round(8 * scale))
workers <- getOption("mc.cores", 2L)
cat(sprintf("app: r_table\nthreads: %d of data.table, %d of parallel\n", getDTthreads(), workers))

now <- function() as.numeric(Sys.time())
# A generator of its own (Park and Miller 1988), exact in doubles.
chain <- function(seed, n) {
  value <- seed
  for (i in seq_len(n)) value <- (value * 16807) %% 2147483647
  value
}
i <- seq_len(rows)
table <- data.table(id = as.integer((i * 7919) %% rows), group = as.integer((i * 104729) %% groups), value = i %% 1000)


begun <- now()
verified <- TRUE
result <- 0
for (round in seq_len(rounds)) {
  sorted <- table[order((id * round) %% rows, -group)]
  sums <- sorted[, .(total = sum(value), most = max(value), n = .N), by = group]
  setorder(sums, group)
  joined <- merge(sorted, sums, by = "group")
  chains <- mclapply(seq_len(8L), function(seed) chain(seed + round, 20000L), mc.cores = workers)
  verified <- verified && sum(sums$total) == sum(table$value) && sum(sums$n) == rows && nrow(joined) == rows &&
    all(joined$most >= joined$value) && chains[[1]] == chain(1 + round, 20000L)
  result <- c(result, sum(sums$total * sums$group), sum(joined$total %% 1009), unlist(chains))
}
took <- now() - begun

file <- tempfile()
writeLines(sprintf("%.0f", result), file)
cat(sprintf("verified: %s\n", if (verified) "yes" else "NO"))
cat(sprintf("checksum: %s\n", substr(tools::md5sum(file), 1, 16)))
cat(sprintf("time_s: %.3f\n", took))
quit(status = if (verified) 0 else 1)
