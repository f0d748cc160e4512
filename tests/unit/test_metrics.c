/* Metrics on hand-computed confusion matrices; Wilson's interval against values computed in double
 * elsewhere. */
#include "suites.h"

#include <math.h>
#include <string.h>

#include <qnn.h>

#include "tests/common/testutil.h"

#define NEAR(a, b) ck_assert_double_eq_tol((a), (b), 1e-9)

static qnn_metrics score(int n_classes, const int32_t *predicted, const int32_t *labels, int n)
{
    qnn_ctx *const ctx = tu_ctx(1);
    qnn_confusion *c;
    qnn_metrics m;

    TU_OK(ctx, qnn_confusion_create(&c, ctx, n_classes));
    TU_OK(ctx, qnn_confusion_add(c, predicted, labels, n));
    m = qnn_confusion_metrics(c);
    qnn_confusion_free(c);
    qnn_ctx_free(ctx);
    return m;
}

START_TEST(three_classes)
{
    /* Class 0: 2 of 3 found, 3 predicted; class 1: 1 of 2, 1 predicted; class 2: 1 of 1, 2
     * predicted. */
    const int32_t labels[] = {0, 0, 0, 1, 1, 2}, predicted[] = {0, 0, 2, 1, 0, 2};
    const qnn_metrics m = score(3, predicted, labels, 6);

    ck_assert_int_eq(m.n, 6);
    NEAR(m.accuracy, 4.0 / 6.0);
    NEAR(m.precision, (2.0 / 3.0 + 1.0 + 1.0 / 2.0) / 3.0);
    NEAR(m.recall, (2.0 / 3.0 + 1.0 / 2.0 + 1.0) / 3.0);
    NEAR(m.f1, (2.0 / 3.0 + 2.0 / 3.0 + 2.0 / 3.0) / 3.0);
}
END_TEST

START_TEST(absent_classes)
{
    /* Class 1 is never a label but is predicted: precision and recall 0, and it counts. Class 2 is
       a label that nothing found. Classes 3 and 4 appear nowhere and do not count. */
    const int32_t labels[] = {0, 0, 2}, predicted[] = {0, 1, 0};
    const qnn_metrics m = score(5, predicted, labels, 3);

    NEAR(m.accuracy, 1.0 / 3.0);
    NEAR(m.precision, (1.0 / 2.0) / 3.0);
    NEAR(m.recall, (1.0 / 2.0) / 3.0);
    NEAR(m.f1, (1.0 / 2.0) / 3.0);
}
END_TEST

START_TEST(one_class_and_none)
{
    const int32_t zeros[] = {0, 0, 0, 0};
    qnn_metrics m = score(3, zeros, zeros, 4);

    NEAR(m.accuracy, 1.0);
    NEAR(m.precision, 1.0);
    NEAR(m.recall, 1.0);
    NEAR(m.f1, 1.0);
    m = score(3, zeros, zeros, 0);
    ck_assert_int_eq(m.n, 0);
    NEAR(m.accuracy + m.precision + m.recall + m.f1, 0.0);
    NEAR(m.accuracy_lo, 0.0);
    NEAR(m.accuracy_hi, 1.0);
}
END_TEST

START_TEST(logits)
{
    qnn_ctx *const ctx = tu_ctx(1);
    /* ties: the first; NaN: class 0; infinities are ordinary */
    const float x[] = {1, 2, 2, 5, NAN, 9, -INFINITY, -INFINITY, -3, 0, INFINITY, 1};
    const int32_t labels[] = {1, 0, 2, 1};
    const int32_t bad[] = {0, 3}, negative[] = {-1};
    qnn_confusion *c;

    TU_OK(ctx, qnn_confusion_create(&c, ctx, 3));
    TU_OK(ctx, qnn_confusion_add_logits(c, x, labels, 4));
    ck_assert_int_eq(qnn_confusion_classes(c), 3);
    ck_assert_int_eq(qnn_confusion_count(c, 1, 1), 2);
    ck_assert_int_eq(qnn_confusion_count(c, 0, 0), 1);
    ck_assert_int_eq(qnn_confusion_count(c, 2, 2), 1);
    ck_assert_int_eq(qnn_confusion_count(c, 2, 3), 0);
    /* a wrong label changes nothing and is named */
    ck_assert_int_eq(qnn_confusion_add_logits(c, x, bad, 2), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "label 3 of item 1"));
    ck_assert_int_eq(qnn_confusion_add(c, labels, negative, 1), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_confusion_add(c, negative, labels, 1), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "prediction -1"));
    ck_assert_int_eq(qnn_confusion_metrics(c).n, 4);
    qnn_confusion_reset(c);
    ck_assert_int_eq(qnn_confusion_metrics(c).n, 0);
    qnn_confusion_free(c);
    qnn_confusion_free(NULL);
    ck_assert_int_eq(qnn_confusion_create(&c, ctx, 0), QNN_ERR_ARG);
    ck_assert_ptr_null(c);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(wilson)
{
    static const struct {
        int k, n;
        double lo, hi;
    } cases[] = {
        {60, 100, 0.502002586, 0.690598714},
        {0, 10, 0.0, 0.277532803},
        {10, 10, 0.722467197, 1.0},
        {1, 1, 0.206549312, 1.0},
        {1033, 1735, 0.572107897, 0.618248733},
    };
    double lo, hi;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qnn_wilson_interval(cases[i].k, cases[i].n, 1.959964, &lo, &hi);
        NEAR(lo, cases[i].lo);
        NEAR(hi, cases[i].hi);
    }
    qnn_wilson_interval(0, 0, 1.959964, &lo, &hi);
    NEAR(lo, 0.0);
    NEAR(hi, 1.0);
}
END_TEST

Suite *metrics_suite(void)
{
    Suite *const s = suite_create("metrics");
    TCase *const tc = tcase_create("confusion");

    tcase_add_test(tc, three_classes);
    tcase_add_test(tc, absent_classes);
    tcase_add_test(tc, one_class_and_none);
    tcase_add_test(tc, logits);
    tcase_add_test(tc, wilson);
    suite_add_tcase(s, tc);
    return s;
}
