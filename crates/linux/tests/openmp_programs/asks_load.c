/* Prints the load average before and in a region. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    double before[3], within[3];
    getloadavg(before, 3);
#pragma omp parallel
#pragma omp single
    getloadavg(within, 3);
    printf("%.0f %.0f\n", before[0], within[2]);
    return 0;
}
