/* The command line, and what the table of settings cannot say of several settings together. */
#include "study.h"

#include <string.h>

/* The option's operand, or NULL with a message. */
static const char *operand(int argc, char **argv, int *i)
{
    if (*i + 1 < argc)
        return argv[++*i];
    study_error("%s needs a value", argv[*i]);
    return NULL;
}

static int parse_list(study *s)
{
    char text[STUDY_TEXT_MAX];
    int n_wanted = 0;

    (void)snprintf(text, sizeof text, "%s", s->set.methods);
    for (char *name = strtok(text, ", "); name != NULL; name = strtok(NULL, ", ")) {
        int k = 0;

        while (k < STUDY_N_METHODS && strcmp(study_methods[k].key, name) != 0)
            k++;
        if (k == STUDY_N_METHODS)
            return study_fail("--methods", name, "is not a method; --list-methods shows them");
        s->is_wanted[k] = 1;
        n_wanted++;
    }
    return n_wanted > 0 ? 0 : study_fail("--methods", s->set.methods, "names no method");
}

/* A comma-separated list of layers; each must be one of known, "conv1,conv2". */
static int check_layers(const char *what, const char *list, const char *known)
{
    char text[STUDY_TEXT_MAX], why[160];

    (void)snprintf(text, sizeof text, "%s", list);
    for (char *name = strtok(text, ","); name != NULL; name = strtok(NULL, ","))
        if (!study_in_list(known, name)) {
            (void)snprintf(why, sizeof why, "is not one of %s", known);
            return study_fail(what, name, why);
        }
    return 0;
}

static int check_isa(const char *isa)
{
    if (isa[0] == '\0')
        return 0;
    for (int i = 0; qnn_isa_name(i) != NULL; i++)
        if (strcmp(qnn_isa_name(i), isa) == 0)
            return qnn_isa_supported(i)
                       ? 0
                       : study_fail("--isa", isa, "is not supported by this machine");
    return study_fail("--isa", isa,
                      "is not an instruction set of this build (ref, avx2, avx512, avx512vnni)");
}

/* What single bounds cannot say. */
static int check_together(study *s)
{
    char kernel[32];
    int rc = check_isa(s->set.isa);

    if (rc == 0)
        rc = check_layers("quant.skip_layers", s->set.skip_layers, "conv1,conv2,conv3,fc1,fc2");
    if (rc == 0)
        rc = check_layers("quant.dynamic_layers", s->set.dynamic_layers, "fc1,fc2");
    if (rc == 0 && s->resume[0] != '\0' && strcmp(s->set.out, s->resume) != 0)
        rc =
            study_fail("--out", s->set.out, "is not the folder of --resume, where the run goes on");
    if (rc != 0)
        return rc;
    (void)snprintf(kernel, sizeof kernel, "%lld", (long long)s->set.kernel);
    if (s->set.kernel % 2 == 0)
        return study_fail("model.kernel", kernel,
                          "must be odd, so that padding keeps the image's size");
    for (int k = 0; k < STUDY_N_METHODS; k++)
        if (s->is_wanted[k] && study_methods[k].needs_fp32 && s->set.checkpoint[0] == '\0' &&
            !s->is_wanted[STUDY_FP32_CPU])
            return study_fail("--methods", study_methods[k].key,
                              "starts from an FP32 model: add fp32-cpu, or give --checkpoint FILE");
    return 0;
}

int study_in_list(const char *list, const char *name)
{
    const size_t len = strlen(name);

    for (const char *at = list; at != NULL;
         at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL)
        if (len > 0 && strncmp(at, name, len) == 0 && (at[len] == ',' || at[len] == '\0'))
            return 1;
    return 0;
}

/* Settings of an interrupted run come from its own settings.json; options on the command line may
 * still be given and are compared. */
static int read_resumed(study *s, const char *dir, unsigned char *given)
{
    char file[STUDY_TEXT_MAX + 32];
    int rc;

    if (strlen(dir) >= STUDY_TEXT_MAX)
        return study_fail("--resume", dir, "is too long");
    (void)snprintf(s->resume, sizeof s->resume, "%s", dir);
    (void)snprintf(file, sizeof file, "%s/settings.json", dir);
    if ((rc = study_settings_read(&s->set, "--resume", file, given)) != 0)
        return rc;
    (void)snprintf(s->set.out, sizeof s->set.out, "%s", dir);
    return 0;
}

/* Files first: the command line wins over them. */
static int parse_files(study *s, int argc, char **argv, unsigned char *given)
{
    for (int i = 1; i < argc; i++) {
        const int is_config = strcmp(argv[i], "--config") == 0;
        const int t = study_setting_by_flag(argv[i]);
        const char *value;
        int rc;

        if (is_config || strcmp(argv[i], "--resume") == 0) {
            if ((value = operand(argc, argv, &i)) == NULL)
                return 2;
            rc = is_config ? study_settings_read(&s->set, "--config", value, given)
                           : read_resumed(s, value, given);
            if (rc != 0)
                return rc;
        } else if (t >= 0 && study_setting_has_operand(t)) {
            i++;
        }
    }
    return 0;
}

static int parse_options(study *s, int argc, char **argv, unsigned char *given)
{
    for (int i = 1; i < argc; i++) {
        const int t = study_setting_by_flag(argv[i]);
        const char *const flag = argv[i], *value = "1";
        int rc;

        if (strcmp(flag, "--config") == 0 || strcmp(flag, "--resume") == 0) {
            i++;
            continue;
        }
        if (t < 0)
            return study_fail("unknown option", flag, "(--help lists them)");
        if (study_setting_has_operand(t) && (value = operand(argc, argv, &i)) == NULL)
            return 2;
        if ((rc = study_setting_set(&s->set, t, flag, value)) != 0)
            return rc;
        given[t] = 1;
    }
    return 0;
}

int study_options_parse(study *s, int argc, char **argv)
{
    unsigned char given[STUDY_MAX_SETTINGS] = {0};
    int rc;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            study_settings_help();
            return 0;
        }
        if (strcmp(argv[i], "--version") == 0) {
            printf("caltech_bench, qnn %s\n", qnn_version());
            return 0;
        }
        if (strcmp(argv[i], "--list-methods") == 0) {
            study_methods_list(stdout);
            return 0;
        }
    }
    rc = study_settings_default(&s->set);
    if (rc == 0)
        rc = parse_files(s, argc, argv, given);
    if (rc == 0)
        rc = parse_options(s, argc, argv, given);
    if (rc == 0 && s->set.quick && s->resume[0] == '\0')
        rc = study_settings_quick(&s->set, given);
    if (rc == 0)
        rc = parse_list(s);
    if (rc == 0)
        rc = check_together(s);
    return rc != 0 ? rc : -1;
}
