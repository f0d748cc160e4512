/* The class that scores name. */
#ifndef QNN_LIB_ARGMAX_H
#define QNN_LIB_ARGMAX_H

#include <math.h>

/* Index of the first largest of n scores; 0 when there is a NaN. */
static inline int qnn_arg_max(const float *x, int n)
{
    int best = 0;

    for (int i = 0; i < n; i++) {
        if (isnan(x[i]))
            return 0;
        if (x[i] > x[best])
            best = i;
    }
    return best;
}

#endif
