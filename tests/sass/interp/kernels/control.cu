// Control flow: loops that lanes leave at different times, switches, calls, recursion, function pointers,
// local memory.

typedef unsigned u32;
typedef unsigned long long u64;

#define NUMBER (blockIdx.x * blockDim.x + threadIdx.x)
#define ALL 0xffffffffu

extern "C" __global__ void nested(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i], total = 0;
    for (u32 k = 0; k < (a & 15); k++) {
        if (a >> k & 1) {
            if (total & 4)
                continue;
            u32 steps = 0;
            while ((total ^ in[(a + k + steps) & 1023]) & 3) {
                total += in[(i + k) & 1023] >> 3;
                if (++steps > (a & 31))
                    break;
            }
        } else if (total % 7 == 3)
            break;
        total = total * 5 + k;
    }
    out[i] = total;
}

extern "C" __global__ void meeting(const u32 *in, u32 *out,
                                   int n) { // lanes that part must come together again
    u32 i = NUMBER, a = in[i], lane = threadIdx.x & 31, sum = 0;
    for (int k = 0; k < n; k++) {
        if ((a >> k & 3) == 0)
            sum += __popc(a ^ k);
        else if (a >> k & 1)
            for (u32 m = 0; m < (a >> 8 & 7); m++)
                sum ^= in[(m * a) & 1023];
        __syncwarp();
        sum += __shfl_xor_sync(ALL, sum, 1 << (k % 5));
    }
    if (lane < (a & 31) + 4)
        sum += __popc(__activemask());
    out[i] = sum;
}

extern "C" __global__ void leaving(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i];
    if ((a & 7) == 0)
        return;
    for (u32 k = 0; k < 40; k++) {
        if ((a + k) % 11 == 0) {
            out[i] = k + 100;
            return;
        }
        a = a * 3 + 1;
    }
    out[i] = __popc(a);
}

extern "C" __global__ void choices(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i], r = a;
    switch (a % 12) {
    case 0:
        r = in[(a + 1) & 1023] * 3;
        break;
    case 1:
        r = in[(a + 2) & 1023] / 5;
        break;
    case 2:
        r = in[(a + 3) & 1023] % 7;
        break;
    case 3:
        r = in[a & 1023] ^ in[(a + 5) & 1023];
        break;
    case 4:
        r = in[(a + 6) & 1023] << 2;
        break;
    case 5:
        r ^= 0x5555; // fall through
    case 6:
        r += in[(a >> 4) & 1023];
        break;
    case 7:
        r = in[(a + 9) & 1023] - 3;
        break;
    case 8:
        r = __brev(a);
        break;
    case 9:
        r = ~a;
        break;
    case 10:
        r = a * a;
        break;
    }
    switch (n) { // the same way for all
    case 3:
        r += 1;
        break;
    case 4:
        r ^= in[0];
        break;
    case 5:
        r *= 3;
        break;
    case 6:
        r = in[r & 1023];
        break;
    case 7:
        r -= blockIdx.x;
        break;
    case 8:
        r |= 4;
        break;
    default:
        r = 0;
    }
    out[i] = r;
}

__device__ __noinline__ u32 fibonacci(u32 n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }
__device__ __noinline__ u32 add(u32 a, u32 b) { return a + b; }
__device__ __noinline__ u32 multiply(u32 a, u32 b) { return a * b + 1; }
typedef u32 (*Operation)(u32, u32);
__device__ Operation operations[2] = {add, multiply};
__constant__ u32 weights[4] = {3, 1, 4, 1};

extern "C" __global__ void calls(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i];
    u32 r = fibonacci(a & 7);
    if (a & 8)
        r = add(r, multiply(a, weights[a & 3]));
    out[i] = r;
}

extern "C" __global__ void pointers(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i];
    out[i] = operations[a & 1](a, weights[a >> 1 & 3]);
}

extern "C" __global__ void stack(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, a = in[i], table[24];
    unsigned char bytes[16];
    for (u32 k = 0; k < 24; k++)
        table[k] = in[(a + k) & 1023];
    for (u32 k = 0; k < 16; k++)
        bytes[k] = (unsigned char)table[(a >> k) % 24];
    for (u32 k = 0; k < 8; k++)
        table[(a >> k) % 24] += table[(k * n) % 24];
    out[i] = table[a % 24] + bytes[a & 15] + table[(a + 7) % 24];
}

extern "C" __global__ void locks(const u32 *in, u32 *out, int n) { // one lane at a time, whoever comes first
    u32 i = NUMBER, done = 0;
    while (!done) {
        if (atomicCAS(&out[0], 0, 1) == 0) {
            u32 value = *(volatile u32 *)&out[1];
            *(volatile u32 *)&out[1] = value + (in[i] & 15);
            __threadfence();
            atomicExch(&out[0], 0);
            done = 1;
        }
    }
}

#define FOUR(k) 0x9e3779b1u * (k), (k) % 13 + 1, 0x85ebca6bu * (k) + 7, (k) * 77
#define SIXTEEN(k) FOUR(k), FOUR(k + 1), FOUR(k + 2), FOUR(k + 3)
__constant__ u32 factors[128] = {SIXTEEN(1),  SIXTEEN(5),  SIXTEEN(9),  SIXTEEN(13),
                                 SIXTEEN(17), SIXTEEN(21), SIXTEEN(25), SIXTEEN(29)};

// ptxas keeps so many constants in uniform registers that a probe has to save some. Lanes leave at different
// times, and the others need all of them.
extern "C" __global__ void crowded(const u32 *in, u32 *out, int n) {
    u32 i = NUMBER, x = in[i], sum = 0;
    for (int turn = 0; turn < n; turn++) {
        u32 rest = x;
#pragma unroll
        for (int k = 0; k < 24; k++) {
            u32 part = (__umulhi(rest, factors[4 * k]) + rest) >> factors[4 * k + 1];
            sum += (rest - part * factors[4 * k + 2]) ^ factors[4 * k + 3];
            rest = part ^ x;
            if (rest == 0x77)
                break;
        }
        if ((sum & 15) == 3) {
            out[i] = sum;
            return;
        }
        x = x * 5 + turn;
    }
    out[i] = ~sum;
}
