/* A libcuda.so.1 for machines without a GPU: it computes the product of tests/gpu/matrix_product.py on the CPU, reads the
 * kernel's arguments as cuLaunchKernel documents them, and does not read the PTX (ptxas does, where CUDA is installed).
 * While a context is open, GPU 0 of the simulated NVML library is busy: FAIRLEAD_SIM_CONTROL names its control file.
 * FAIRLEAD_SIM_CUDA=listed: NVML lists this process too, as it does outside of PID namespaces. FAIRLEAD_SIM_CUDA=wrong: one
 * number of each product is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CUDA_API __attribute__((visibility("default"))) int
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_PTX = 218 };

static int is_fault(const char *name) {
    const char *fault = getenv("FAIRLEAD_SIM_CUDA");
    return fault && !strcmp(fault, name);
}
static void busy(int percent) {
    const char *path = getenv("FAIRLEAD_SIM_CONTROL");
    FILE *control = path ? fopen(path, "a") : NULL;
    if (!control) return;
    fprintf(control, "set gpu.0.utilization.gpu_percent %d\n", percent);
    if (is_fault("listed")) {
        fprintf(control, "set gpu.0.processes.0.pid %d\nset gpu.0.processes.0.type C\n", (int)getpid());
        fprintf(control, "set gpu.0.processes.0.used_bytes %d\nset gpu.0.processes.count %d\n", 64 << 20, percent > 0);
    }
    fclose(control);
}

CUDA_API cuInit(unsigned int flags) { return flags ? INVALID_VALUE : SUCCESS; }
CUDA_API cuDeviceGetByPCIBusId(int *device, const char *pci) {
    *device = 0;
    return strlen(pci) == 12 ? SUCCESS : INVALID_VALUE;
}
CUDA_API cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &busy;
    busy(99);
    return device;
}
CUDA_API cuDevicePrimaryCtxRelease_v2(int device) {
    busy(0);
    return device;
}
CUDA_API cuCtxSetCurrent(void *context) { return context ? SUCCESS : INVALID_VALUE; }
CUDA_API cuModuleLoadData(void **module, const void *image) {
    *module = (void *)image;
    return strncmp(image, ".version", 8) ? INVALID_PTX : SUCCESS;
}
CUDA_API cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return strcmp(name, "product") ? INVALID_VALUE : SUCCESS;
}
CUDA_API cuMemAlloc_v2(unsigned long long *pointer, size_t size) {
    *pointer = (unsigned long long)calloc(1, size);
    return *pointer ? SUCCESS : INVALID_VALUE;
}
CUDA_API cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size) {
    memcpy((void *)to, from, size);
    return SUCCESS;
}
CUDA_API cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) {
    memcpy(to, (void *)from, size);
    return SUCCESS;
}
static float *numbers(const _Float16 *from, size_t count) {
    float *made = malloc(count * sizeof *made);
    if (!made) abort();
    for (size_t i = 0; i < count; i++) made[i] = (float)from[i];
    return made;
}
CUDA_API cuLaunchKernel(void *function, unsigned int x, unsigned int y, unsigned int z, unsigned int threads, unsigned int ty,
                        unsigned int tz, unsigned int shared, void *stream, void **arguments, void **extra) {
    float *a, *b, *c = *(float **)arguments[2], sum;
    size_t size = *(unsigned int *)arguments[3], rows = y * 64, columns = x * 2 * threads;
    if (!function || z != 1 || ty != 1 || tz != 1 || shared || stream || extra || rows != size || columns != size)
        return INVALID_VALUE;
    a = numbers(*(const _Float16 **)arguments[0], size * size);
    b = numbers(*(const _Float16 **)arguments[1], size * size);
    for (size_t i = 0; i < size; i++)
        for (size_t j = 0; j < size; j++) {
            sum = 0;
            for (size_t k = 0; k < size; k++) sum += a[i * size + k] * b[j * size + k];
            c[i * size + j] = sum;
        }
    free(a);
    free(b);
    if (is_fault("wrong")) c[size + 1] += 1;
    return SUCCESS;
}
CUDA_API cuCtxSynchronize(void) {
    usleep(50000); /* a signal may end it early */
    return SUCCESS;
}
CUDA_API cuGetErrorName(int code, const char **text) {
    *text = code == INVALID_PTX ? "CUDA_ERROR_INVALID_PTX" : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}
