/* NVLink, fabric, affinity and the distances between GPUs. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static nvmlReturn of_link(int gpu, unsigned int link, const char *what, unsigned int *out) {
    char key[64];
    NEED(out && link < NVML_NVLINK_MAX_LINKS);
    snprintf(key, sizeof key, "nvlink.%u.%s", link, what);
    return sim_uint(gpu, key, out);
}
NVML_API nvmlReturn nvmlDeviceGetNvLinkState(nvmlDevice device, unsigned int link, unsigned int *out) {
    ENTER_GPU();
    return of_link(gpu, link, "active", out);
}
NVML_API nvmlReturn nvmlDeviceGetNvLinkVersion(nvmlDevice device, unsigned int link, unsigned int *out) {
    ENTER_GPU();
    return of_link(gpu, link, "version", out);
}
NVML_API nvmlReturn nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice device, unsigned int link, unsigned int *out) {
    char key[64], text[SIM_TEXT];
    ENTER_GPU();
    NEED(out && link < NVML_NVLINK_MAX_LINKS);
    snprintf(key, sizeof key, "nvlink.%u.remote", link);
    TRY(sim_text(gpu, key, text, sizeof text));
    *out = strcmp(text, "switch") ? NVML_NVLINK_DEVICE_TYPE_GPU : NVML_NVLINK_DEVICE_TYPE_SWITCH;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetNvLinkCapability(nvmlDevice device, unsigned int link, unsigned int capability,
                                                  unsigned int *out) {
    ENTER_GPU();
    NEED(capability < 6);
    TRY(of_link(gpu, link, "active", out));
    *out = 1;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetNvLinkErrorCounter(nvmlDevice device, unsigned int link, unsigned int counter,
                                                    unsigned long long *out) {
    static const char *const keys[] = {"replay_errors", "recovery_errors", "crc_errors", "crc_errors"};
    unsigned int value;
    ENTER_GPU();
    NEED(out && counter < 4);
    TRY(of_link(gpu, link, keys[counter], &value));
    *out = value;
    return NVML_SUCCESS;
}

struct fabric { unsigned int state, status, clique, health; unsigned char cluster[16]; };
static nvmlReturn fabric(int gpu, struct fabric *f) {
    char text[SIM_TEXT], digits[33] = {0};
    size_t n = 0;
    TRY(sim_uint(gpu, "fabric.state", &f->state));
    TRY(sim_uint(gpu, "fabric.status", &f->status));
    TRY(sim_uint(gpu, "fabric.clique_id", &f->clique));
    TRY(sim_uint(gpu, "fabric.health_mask", &f->health));
    TRY(sim_text(gpu, "fabric.cluster_uuid", text, sizeof text));
    for (const char *c = text; *c && n < 32; c++)
        if (*c != '-') digits[n++] = *c;
    for (int i = 0; i < 16; i++) {
        char byte[3] = {digits[2 * i], digits[2 * i + 1], 0};
        f->cluster[i] = (unsigned char)strtoul(byte, NULL, 16);
    }
    return NVML_SUCCESS;
}
#define FILL_FABRIC(out, f)                                           \
    do {                                                              \
        memcpy((out)->clusterUuid, (f).cluster, sizeof (f).cluster);  \
        (out)->status = (f).status;                                   \
        (out)->cliqueId = (f).clique;                                 \
        (out)->state = (f).state;                                     \
    } while (0)
NVML_API nvmlReturn nvmlDeviceGetGpuFabricInfo(nvmlDevice device, c_nvmlGpuFabricInfo_t *out) {
    struct fabric f;
    ENTER_GPU();
    NEED(out);
    TRY(fabric(gpu, &f));
    FILL_FABRIC(out, f);
    return NVML_SUCCESS;
}
/* The caller's version word says which layout it means. */
NVML_API nvmlReturn nvmlDeviceGetGpuFabricInfoV(nvmlDevice device, void *out) {
    struct fabric f;
    unsigned int version;
    ENTER_GPU();
    NEED(out);
    memcpy(&version, out, sizeof version);
    if (version == (sizeof(c_nvmlGpuFabricInfo_v2_t) | 2u << 24)) {
        c_nvmlGpuFabricInfo_v2_t *v2 = out;
        TRY(fabric(gpu, &f));
        FILL_FABRIC(v2, f);
        v2->healthMask = f.health;
        return NVML_SUCCESS;
    }
    if (version == (sizeof(c_nvmlGpuFabricInfo_v3_t) | 3u << 24)) {
        c_nvmlGpuFabricInfo_v3_t *v3 = out;
        TRY(fabric(gpu, &f));
        FILL_FABRIC(v3, f);
        v3->healthMask = f.health;
        v3->healthSummary = 0;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
}

static void set_bits(const char *list, unsigned int words, unsigned long *out) {
    memset(out, 0, words * sizeof *out);
    while (*list) {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (end == list) return;
        if (*end == '-') last = strtoul(end + 1, &end, 10);
        for (unsigned long n = first; n <= last && n < words * 64ul; n++) out[n / 64] |= 1ul << n % 64;
        list = *end == ',' ? end + 1 : end;
    }
}
static nvmlReturn cpu_affinity(int gpu, unsigned int words, unsigned long *out) {
    char text[SIM_TEXT];
    NEED(words && out);
    TRY(sim_text(gpu, "cpu_affinity", text, sizeof text));
    set_bits(text, words, out);
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetCpuAffinity(nvmlDevice device, unsigned int words, unsigned long *out) {
    ENTER_GPU();
    return cpu_affinity(gpu, words, out);
}
NVML_API nvmlReturn nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice device, unsigned int words, unsigned long *out,
                                                        unsigned int scope) {
    ENTER_GPU();
    NEED(scope < 2);
    return cpu_affinity(gpu, words, out);
}
NVML_API nvmlReturn nvmlDeviceGetMemoryAffinity(nvmlDevice device, unsigned int words, unsigned long *out,
                                                unsigned int scope) {
    char text[SIM_TEXT];
    ENTER_GPU();
    NEED(words && out && scope < 2);
    TRY(sim_text(gpu, "numa", text, sizeof text));
    set_bits(text, words, out);
    return NVML_SUCCESS;
}

/* Another GPU's handle: valid, or INVALID_ARGUMENT. */
static nvmlReturn second(nvmlDevice device, int *out) {
    *out = sim_index(device);
    return *out == NO_GPU || *out >= sim_gpu_count() ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetTopologyCommonAncestor(nvmlDevice device, nvmlDevice other, unsigned int *out) {
    char key[64];
    int two;
    ENTER_GPU();
    NEED(out);
    TRY(second(other, &two));
    if (gpu == two) {
        *out = NVML_TOPOLOGY_INTERNAL;
        return NVML_SUCCESS;
    }
    snprintf(key, sizeof key, "common_ancestor.%d", two);
    return sim_uint(gpu, key, out);
}
NVML_API nvmlReturn nvmlDeviceGetP2PStatus(nvmlDevice device, nvmlDevice other, unsigned int what, unsigned int *out) {
    unsigned int links = 0;
    int two;
    ENTER_GPU();
    NEED(out && what < 5);
    TRY(second(other, &two));
    if (sim_uint(gpu, "nvlink.count", &links) != NVML_SUCCESS) links = 0;
    *out = what == NVML_P2P_CAPS_INDEX_NVLINK && !links ? NVML_P2P_STATUS_NOT_SUPPORTED : NVML_P2P_STATUS_OK;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceOnSameBoard(nvmlDevice device, nvmlDevice other, int *out) {
    int two;
    ENTER_GPU();
    NEED(out);
    TRY(second(other, &two));
    *out = gpu == two;
    return NVML_SUCCESS;
}
