/* Umbrella: everything public in qnn, a neural-network library in plain C. */
#ifndef QNN_H
#define QNN_H

#include <qnn/ctx.h>
#include <qnn/dataset.h>
#include <qnn/image.h>
#include <qnn/metrics.h>
#include <qnn/model.h>
#include <qnn/program.h>
#include <qnn/quant.h>
#include <qnn/status.h>
#include <qnn/train.h>

#endif
