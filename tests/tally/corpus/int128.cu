__global__ void i8(__int128 *p, unsigned __int128 *u, int n) {
    p[0] = p[1] * p[2] + n;
    u[0] = u[1] >> n;
    u[2] = u[3] + u[4];
}
