/* Adam on rows of 16, written straight down: what a C kernel without further ideas costs.
 *
 * `steps` steps over `n` rows; the gradient of row i is g[i] * p, as in PFedCLR's Step 1, but both
 * moments are kept in full for every entry, as torch does. */
#include <math.h>
#include <stdint.h>

#define DIM 16

void adam_rows(int64_t n, int64_t steps, float rate, const float *restrict p,
               const float *restrict g, float *restrict q, float *restrict m, float *restrict v)
{
    const float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
    double power1 = 1.0, power2 = 1.0;
    for (int64_t t = 0; t < steps; t++) {
        power1 *= 0.9;
        power2 *= 0.999;
        const float step = (float)(rate / (1.0 - power1));
        const float unbias = (float)(1.0 / sqrt(1.0 - power2));
        for (int64_t i = 0; i < n; i++) {
            for (int k = 0; k < DIM; k++) {
                const int64_t j = i * DIM + k;
                const float gradient = g[i] * p[k];
                m[j] = beta1 * m[j] + (1.0f - beta1) * gradient;
                v[j] = beta2 * v[j] + (1.0f - beta2) * gradient * gradient;
                q[j] -= step * m[j] / (sqrtf(v[j]) * unbias + epsilon);
            }
        }
    }
}
