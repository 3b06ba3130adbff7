/* The SPANK calls that slurm/spank/fairlead.c makes, answered from this process: the job's environment is our own, local task
 * STUB_LOCAL of STUB_TASKS. Runs task_init, then the command. Linked with the plugin under AddressSanitizer, so that hostile files
 * and environments are tried by the hundred without Slurm. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

static long number(const char *name) { return getenv(name) ? atol(getenv(name)) : 0; }

spank_context_t spank_context(void) { return S_CTX_REMOTE; }

spank_err_t spank_option_register(spank_t sp, struct spank_option *opt) {
    (void)sp;
    return getenv("STUB_SWITCH") ? (spank_err_t)opt->cb(opt->val, getenv("STUB_SWITCH"), 1) : ESPANK_SUCCESS;
}

spank_err_t spank_get_item(spank_t sp, spank_item_t item, ...) {
    va_list to;
    (void)sp;
    va_start(to, item);
    if (item == S_TASK_ID) *va_arg(to, int *) = (int)number("STUB_LOCAL");
    else if (item == S_JOB_LOCAL_TASK_COUNT) *va_arg(to, uint32_t *) = (uint32_t)number("STUB_TASKS");
    else if (item == S_JOB_STEPID) *va_arg(to, uint32_t *) = (uint32_t)number("STUB_STEP");
    else if (item == S_JOB_ID) *va_arg(to, uint32_t *) = 4711;
    va_end(to);
    return ESPANK_SUCCESS;
}

spank_err_t spank_getenv(spank_t sp, const char *name, char *out, int size) {
    const char *value = getenv(name);
    (void)sp;
    if (!value) return ESPANK_ENV_NOEXIST;
    memset(out, 0, (size_t)size);
    strncpy(out, value, (size_t)size - 1);
    return strlen(value) >= (size_t)size ? ESPANK_NOSPACE : ESPANK_SUCCESS;
}

spank_err_t spank_setenv(spank_t sp, const char *name, const char *value, int overwrite) {
    (void)sp;
    return setenv(name, value, overwrite) ? ESPANK_BAD_ARG : ESPANK_SUCCESS;
}

#define LOG(name) void name(const char *format, ...) { (void)format; }
LOG(slurm_error)
LOG(slurm_verbose)
LOG(slurm_debug)

int slurm_spank_init(spank_t, int, char **);
int slurm_spank_init_post_opt(spank_t, int, char **);
int slurm_spank_task_init(spank_t, int, char **);

int main(int argc, char **argv) {
    int said = slurm_spank_init(NULL, 0, NULL) | slurm_spank_init_post_opt(NULL, 0, NULL) | slurm_spank_task_init(NULL, 0, NULL);
    if (said != ESPANK_SUCCESS) return 99;
    if (argc > 1) execvp(argv[1], argv + 1);
    return 98;
}
