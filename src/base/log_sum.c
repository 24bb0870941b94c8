#include "base/log_sum.h"

#include <math.h>

double log_sum(const float *row, uint32_t n)
{
    float largest = row[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        largest = row[i] > largest ? row[i] : largest;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)row[i] - (double)largest);
    return (double)largest + log(fmax(sum, 1)); /* the largest logit alone adds 1 */
}
