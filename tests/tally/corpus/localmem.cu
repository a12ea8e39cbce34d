__global__ void lm(int *p, int n) {
    int a[64];
    for (int i = 0; i < 64; i++)
        a[i] = p[i];
    for (int i = 0; i < n; i++) {
        int t = a[p[i] & 63];
        a[p[i] & 63] = a[i & 63];
        a[i & 63] = t;
    }
    for (int i = 0; i < 64; i++)
        p[i] = a[i];
    char *q = (char *)alloca(n);
    q[n - 1] = 1;
    p[0] += q[p[1]];
}
