/* Start, end, strings, and handles. */
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nvmlReturn start(void) {
    nvmlReturn rc = sim_load();
    if (rc == NVML_SUCCESS) sim_set_initialised(1);
    return rc;
}

NVML_API nvmlReturn nvmlInit(void) { ENTER(); return start(); }
NVML_API nvmlReturn nvmlInit_v2(void) { ENTER(); return start(); }
NVML_API nvmlReturn nvmlInitWithFlags(unsigned int flags) { (void)flags; ENTER(); return start(); }
NVML_API nvmlReturn nvmlShutdown(void) { ENTER(); sim_set_initialised(-1); return NVML_SUCCESS; }

NVML_API const char *nvmlErrorString(nvmlReturn code) {
    for (size_t i = 0; i < sizeof nvml_error_texts / sizeof nvml_error_texts[0]; i++)
        if (nvml_error_texts[i].code == code) return nvml_error_texts[i].text;
    return code == NVML_SUCCESS ? "Success" : "Unknown error code";
}

NVML_API nvmlReturn nvmlSystemGetDriverVersion(char *out, unsigned int size) {
    ENTER();
    return sim_copy_text(NO_GPU, "driver_version", out, size);
}
NVML_API nvmlReturn nvmlSystemGetNVMLVersion(char *out, unsigned int size) {
    ENTER();
    return sim_copy_text(NO_GPU, "nvml_version", out, size);
}
NVML_API nvmlReturn nvmlSystemGetCudaDriverVersion(unsigned int *out) {
    ENTER();
    return sim_uint(NO_GPU, "cuda_driver_version", out);
}
NVML_API nvmlReturn nvmlSystemGetCudaDriverVersion_v2(unsigned int *out) {
    ENTER();
    return sim_uint(NO_GPU, "cuda_driver_version", out);
}
NVML_API nvmlReturn nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int size) {
    char path[64];
    ENTER();
    NEED(out && size);
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *f = fopen(path, "re");
    if (!f) return NVML_ERROR_NOT_FOUND;
    if (!fgets(out, (int)size, f)) out[0] = 0;
    out[strcspn(out, "\n")] = 0;
    fclose(f);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlUnitGetCount(unsigned int *out) { ENTER(); NEED(out); *out = 0; return NVML_SUCCESS; }

static nvmlReturn count(unsigned int *out) {
    NEED(out);
    *out = (unsigned int)sim_gpu_count();
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetCount(unsigned int *out) { ENTER(); return count(out); }
NVML_API nvmlReturn nvmlDeviceGetCount_v2(unsigned int *out) { ENTER(); return count(out); }

/* The handle of one GPU, unless its loss goes as far as that. */
static nvmlReturn give(const char *call, int gpu, nvmlDevice *out) {
    char text[SIM_TEXT];
    NEED(out);
    if (gpu < 0 || gpu >= sim_gpu_count()) return NVML_ERROR_INVALID_ARGUMENT;
    TRY(sim_suffer(call, gpu));
    if (fault_handle_lost(gpu)) return NVML_ERROR_GPU_IS_LOST;
    nvmlReturn rc = sim_text(gpu, "handle", text, sizeof text); /* "error CODE" where the machine tree says so */
    if (rc != NVML_SUCCESS && rc != NVML_ERROR_NOT_SUPPORTED) return rc;
    *out = &sim_devices[gpu];
    return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice *out) {
    TRY(sim_begin(__func__));
    return give(__func__, (int)index, out);
}
NVML_API nvmlReturn nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice *out) {
    TRY(sim_begin(__func__));
    return give(__func__, (int)index, out);
}

static nvmlReturn by_text(const char *call, const char *key, const char *wanted, nvmlDevice *out) {
    char text[SIM_TEXT];
    NEED(wanted && out);
    for (int gpu = 0; gpu < sim_gpu_count(); gpu++)
        if (sim_text(gpu, key, text, sizeof text) == NVML_SUCCESS && !strcmp(text, wanted)) return give(call, gpu, out);
    return NVML_ERROR_NOT_FOUND;
}
NVML_API nvmlReturn nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice *out) {
    TRY(sim_begin(__func__));
    if (uuid && out && !strncmp(uuid, "MIG-", 4)) {
        nvmlDevice found = sim_mig_by_uuid(uuid);
        if (!found) return NVML_ERROR_NOT_FOUND;
        *out = found;
        return NVML_SUCCESS;
    }
    return by_text(__func__, "uuid", uuid, out);
}
NVML_API nvmlReturn nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice *out) {
    TRY(sim_begin(__func__));
    return by_text(__func__, "serial", serial, out);
}

struct bdf { unsigned int domain, bus, device, function; };

static int parse_bdf(const char *text, struct bdf *out) {
    char rest;
    return sscanf(text, "%x:%x:%x.%x%c", &out->domain, &out->bus, &out->device, &out->function, &rest) == 4 ||
           (out->domain = 0, sscanf(text, "%x:%x.%x%c", &out->bus, &out->device, &out->function, &rest) == 3);
}

static nvmlReturn by_pci(const char *call, const char *wanted, nvmlDevice *out) {
    char text[SIM_TEXT];
    struct bdf want, have;
    NEED(wanted && out && parse_bdf(wanted, &want));
    for (int gpu = 0; gpu < sim_gpu_count(); gpu++)
        if (sim_text(gpu, "pci", text, sizeof text) == NVML_SUCCESS && parse_bdf(text, &have) &&
            have.domain == want.domain && have.bus == want.bus && have.device == want.device)
            return give(call, gpu, out);
    return NVML_ERROR_NOT_FOUND;
}
NVML_API nvmlReturn nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice *out) {
    TRY(sim_begin(__func__));
    return by_pci(__func__, text, out);
}
NVML_API nvmlReturn nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice *out) {
    TRY(sim_begin(__func__));
    return by_pci(__func__, text, out);
}

/* Bus ids: the driver prints 8 digits of domain in capitals, and 4 in the legacy field. */
static nvmlReturn fill_pci(const char *text, int gpu, nvmlPciInfo_t *out) {
    struct bdf at;
    long long number;
    if (!parse_bdf(text, &at)) return NVML_ERROR_UNKNOWN;
    memset(out, 0, sizeof *out);
    out->domain = at.domain;
    out->bus = at.bus;
    out->device = at.device;
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.%X", at.domain, at.bus & 0xff, at.device & 0xff, at.function & 7);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.%X", at.domain & 0xffff, at.bus & 0xff,
             at.device & 0xff, at.function & 7);
    if (gpu >= 0 && sim_number(gpu, "pci_device_id", &number) == NVML_SUCCESS) out->pciDeviceId = (unsigned int)number;
    if (gpu >= 0 && sim_number(gpu, "pci_subsystem_id", &number) == NVML_SUCCESS)
        out->pciSubSystemId = (unsigned int)number;
    return NVML_SUCCESS;
}

static nvmlReturn pci_info(int gpu, nvmlPciInfo_t *out) {
    char text[SIM_TEXT];
    NEED(out);
    TRY(sim_text(gpu, "pci", text, sizeof text));
    return fill_pci(text, gpu, out);
}
NVML_API nvmlReturn nvmlDeviceGetPciInfo_v3(nvmlDevice device, nvmlPciInfo_t *out) {
    ENTER_WITH(device, 1);
    return pci_info(gpu, out);
}
static nvmlReturn pci_info_v2(int gpu, nvmlPciInfo_v2_t *out) {
    nvmlPciInfo_t newest;
    NEED(out);
    TRY(pci_info(gpu, &newest));
    memset(out, 0, sizeof *out);
    memcpy(out->busId, newest.busIdLegacy, sizeof out->busId);
    out->domain = newest.domain;
    out->bus = newest.bus;
    out->device = newest.device;
    out->pciDeviceId = newest.pciDeviceId;
    out->pciSubSystemId = newest.pciSubSystemId;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetPciInfo(nvmlDevice device, nvmlPciInfo_v2_t *out) {
    ENTER_WITH(device, 1);
    return pci_info_v2(gpu, out);
}
NVML_API nvmlReturn nvmlDeviceGetPciInfo_v2(nvmlDevice device, nvmlPciInfo_v2_t *out) {
    ENTER_WITH(device, 1);
    return pci_info_v2(gpu, out);
}

/* The other end of an NVLink, as far as the tree says; all zeros for a switch whose address it does not give. */
static nvmlReturn remote(int gpu, unsigned int link, nvmlPciInfo_t *out) {
    char key[64], text[SIM_TEXT];
    NEED(out && link < NVML_NVLINK_MAX_LINKS);
    snprintf(key, sizeof key, "nvlink.%u.remote", link);
    TRY(sim_text(gpu, key, text, sizeof text));
    if (!isxdigit((unsigned char)text[0])) {
        snprintf(key, sizeof key, "nvlink.%u.remote_pci", link);
        if (sim_text(gpu, key, text, sizeof text) != NVML_SUCCESS) strcpy(text, "0000:00:00.0");
    }
    return fill_pci(text, NO_GPU, out);
}
NVML_API nvmlReturn nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice device, unsigned int link, nvmlPciInfo_t *out) {
    ENTER_GPU();
    return remote(gpu, link, out);
}
NVML_API nvmlReturn nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice device, unsigned int link, nvmlPciInfo_v2_t *out) {
    nvmlPciInfo_t newest;
    ENTER_GPU();
    NEED(out);
    TRY(remote(gpu, link, &newest));
    memset(out, 0, sizeof *out);
    memcpy(out->busId, newest.busIdLegacy, sizeof out->busId);
    out->domain = newest.domain;
    out->bus = newest.bus;
    out->device = newest.device;
    return NVML_SUCCESS;
}
