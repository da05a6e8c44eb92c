using System;
using System.Diagnostics;
using System.Globalization;
using System.Threading.Tasks;

/// <summary>
/// .NET as a benchmark program: <c>Parallel.For</c> loops and a sort by parts, in many short rounds.
/// Parts are the same for any number of threads, and all sums are of whole numbers, so the checksum is, too.
/// </summary>
public static class DotnetPar
{
    private const int RoundsAtScaleOne = 40;
    private const int Numbers = 200_000;
    private const int Parts = 16;

    public static int Main(string[] args)
    {
        double scale = 1.0;
        bool good = args.Length == 0
            || (args.Length == 1 && double.TryParse(args[0], NumberStyles.Float, CultureInfo.InvariantCulture, out scale));
        if (!good || !(scale > 0 && scale <= 1000))
        {
            Console.Error.WriteLine("dotnet_par: usage: DotnetPar [SCALE], SCALE above 0 and at most 1000; got "
                + string.Join(" ", args));
            return 2;
        }
        Console.WriteLine("app: dotnet_par");
        Console.WriteLine("threads: " + Environment.ProcessorCount);
        Rounds(1, out _); // compiles
        Stopwatch watch = Stopwatch.StartNew();
        bool verified = Rounds((int)Math.Max(1, Math.Round(RoundsAtScaleOne * scale)), out ulong checksum);
        double took = watch.Elapsed.TotalSeconds;
        Console.WriteLine("verified: " + (verified ? "yes" : "NO"));
        Console.WriteLine("checksum: " + checksum.ToString("x16", CultureInfo.InvariantCulture));
        Console.WriteLine("time_s: " + took.ToString("F3", CultureInfo.InvariantCulture));
        return verified ? 0 : 1;
    }

    private static bool Rounds(int count, out ulong checksum)
    {
        ulong[] numbers = new ulong[Numbers];
        bool verified = true;
        checksum = 0;
        for (int round = 1; round <= count; round++)
        {
            ulong seed = checksum + (ulong)round;
            Parallel.For(0, Parts, part =>
            {
                for (int i = Begin(part); i < Begin(part + 1); i++) numbers[i] = Mix(seed + (ulong)i);
            });
            ulong before = Total(numbers);
            ulong[] sorted = Sorted(numbers);
            verified &= Total(sorted) == before;
            for (int i = 1; i < Numbers; i++) verified &= sorted[i - 1] <= sorted[i];
            checksum = Mix(checksum ^ before ^ sorted[Numbers / 2]);
        }
        return verified;
    }

    private static int Begin(int part) => (int)((long)part * Numbers / Parts);

    private static ulong Total(ulong[] numbers)
    {
        ulong[] sums = new ulong[Parts];
        Parallel.For(0, Parts, part =>
        {
            ulong sum = 0;
            for (int i = Begin(part); i < Begin(part + 1); i++) sum += numbers[i];
            sums[part] = sum;
        });
        ulong total = 0;
        foreach (ulong sum in sums) total += sum;
        return total;
    }

    private static ulong[] Sorted(ulong[] numbers)
    {
        ulong[][] parts = new ulong[Parts][];
        Parallel.For(0, Parts, part =>
        {
            parts[part] = new ulong[Begin(part + 1) - Begin(part)];
            Array.Copy(numbers, Begin(part), parts[part], 0, parts[part].Length);
            Array.Sort(parts[part]);
        });
        while (parts.Length > 1)
        {
            ulong[][] from = parts;
            ulong[][] next = new ulong[parts.Length / 2][];
            Parallel.For(0, next.Length, pair => next[pair] = Merged(from[2 * pair], from[2 * pair + 1]));
            parts = next;
        }
        return parts[0];
    }

    private static ulong[] Merged(ulong[] left, ulong[] right)
    {
        ulong[] merged = new ulong[left.Length + right.Length];
        int i = 0, j = 0;
        for (int k = 0; k < merged.Length; k++)
        {
            bool takeLeft = j == right.Length || (i < left.Length && left[i] <= right[j]);
            merged[k] = takeLeft ? left[i++] : right[j++];
        }
        return merged;
    }

    /// <summary>A mixing of 64 bits: rounds of shift, exclusive or and multiply.</summary>
    private static ulong Mix(ulong value)
    {
        for (int i = 0; i < 64; i++) value = unchecked((value ^ (value >> 31)) * 0x9E3779B97F4A7C15UL + 0x632BE5ABUL);
        return value;
    }
}
