/* A machine with a load of 50. */
int getloadavg(double *loads, int count)
{
    for (int i = 0; i < count && i < 3; i++)
        loads[i] = 50;
    return count < 3 ? count : 3;
}
