struct alignas(16) V {
    float x[4];
};
struct S1 {
    char c;
    double d;
    int a[3];
};
struct E {};
struct Huge {
    int a[2000];
};
__global__ void pa(bool b, char c, short s, int i, long long l, unsigned char uc, float f, double d, void *p,
                   V v, S1 s1, E e, float3 f3, int2 i2, const __grid_constant__ Huge h, int *out) {
    out[0] = b + c + s + i + l + uc + (int)f + (int)d + (int)v.x[2] + (int)s1.d + (int)f3.z + i2.y + h.a[i];
    *(int *)p = 1;
    const int *hp = &h.a[5];
    out[1] = (int)(size_t)hp;
}
