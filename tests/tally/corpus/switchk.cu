__global__ void sw(int *p, int n) {
    int r = 0;
    switch (n) {
    case 0:
        r = p[1] * 3;
        break;
    case 1:
        r = p[2] / 5;
        break;
    case 2:
        r = p[3] % 7;
        break;
    case 3:
        r = p[4] ^ p[5];
        break;
    case 4:
        r = p[6] << 2;
        break;
    case 5:
        r = p[7] + p[8];
        break;
    case 6:
        r = __ldg(p + 9);
        break;
    case 7:
        r = p[10] - 3;
        break;
    case 8:
        r = p[11] | 5;
        break;
    case 9:
        r = ~p[12];
        break;
    default:
        r = -1;
    }
    p[0] = r;
    for (int i = 0; i < n; i++) {
        if (p[i] == 5)
            continue;
        if (p[i] == 9)
            break;
        p[i] = p[i] / n;
    }
    long long q = p[0];
    p[1] = (int)(q / n) + (int)((unsigned long long)q % 17);
}
