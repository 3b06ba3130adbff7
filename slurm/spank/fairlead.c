/* This is fairlead's SPANK plugin. A site need not use it. List it as `optional` and before pyxis in plugstack.conf(5):
 *
 *     optional /usr/lib/fairlead-spank/fairlead.so [memory=no]
 * - srun, sbatch and salloc get the option --fairlead=on|off|minimal. Its value becomes FAIRLEAD_PROFILE of the job.
 * - If the user chose --cpu-bind, srun sets FAIRLEAD_CPU_BIND=user. A task alone cannot distinguish a keyword from Slurm's
 *   default.
 * - The plugin binds each task of a GPU step that has the whole node, before the task prolog and before a container. If Slurm
 *   assigned exactly the CPU sets of the plan that the agent published (/run/fairlead/plans/N), each task gets one of them near
 *   its GPU, and prefers the memory there (set_mempolicy(2), MPOL_PREFERRED). The conditions are those of slurm/task-prolog. The
 *   plugin computes no plan. Without a published plan, or if the input is not clear, it changes nothing.
 * - With MIG there is no published plan, because Slurm's indices count instances. There the plugin finds the instances of a step by
 *   the UUIDs in CUDA_VISIBLE_DEVICES (AutoDetect=nvml), or by the agent's list of indices if gres.conf lists them. It exchanges whole
 *   CPU sets of Slurm's if that puts each task near the GPUs of its instances. In all other cases it leaves the step to the task prolog, which has a planner.
 *   tests/hooks/test_one_binding_rule.py compares the binding with the rule in Python.
 *
 * Every callback returns ESPANK_SUCCESS, because a plugin must not fail a job. The plugin reads only regular files of root,
 * without blocking and up to a maximal size. The user controls the environment, so its values are only compared, counted or
 * parsed, up to a maximal length. task_init runs as the user (spank(8)), so it cannot do more than the user. Sources: spank(8),
 * <slurm/spank.h>.
 *
 * Build it once for each Slurm release (spank.h is in libslurm-dev or slurm-devel):
 *     gcc -std=gnu11 -O2 -shared -fPIC -o fairlead.so fairlead.c
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(fairlead, 1)

enum { TASKS_MAX = 1024, CPUS_MAX = 8192, TEXT_MAX = 1 << 18, LIST_MAX = 1 << 16, WORD_MAX = 4096, NODES_MAX = 1024 };
enum { MODE_DEFAULT = 0, MODE_PREFERRED = 1 }; /* MPOL_DEFAULT, MPOL_PREFERRED of linux/mempolicy.h */
enum { LONG_BITS = 8 * sizeof(unsigned long) };

typedef struct { unsigned long word[CPUS_MAX / LONG_BITS]; } cpus_t;

static char choice[8]; /* the value of --fairlead: "", full, minimal, off */

/* ---- the option ---- */

static int choose(int val, const char *arg, int remote) {
    (void)val;
    if (arg && (!strcmp(arg, "on") || !strcmp(arg, "full"))) strcpy(choice, "full");
    else if (arg && !strcmp(arg, "minimal")) strcpy(choice, "minimal");
    else {
        if (!remote && (!arg || strcmp(arg, "off"))) slurm_error("fairlead: --fairlead must be on, off or minimal; it counts as off");
        strcpy(choice, "off");
    }
    return ESPANK_SUCCESS;
}

static struct spank_option option = {
    "fairlead", "on|off|minimal", "bind tasks to the CPUs nearest their GPUs and set defaults (fairlead)", 1, 0, choose,
};

int slurm_spank_init(spank_t sp, int ac, char *av[]) {
    (void)ac, (void)av;
    switch (spank_context()) {
    case S_CTX_LOCAL:
    case S_CTX_ALLOCATOR:
    case S_CTX_REMOTE:
        if (spank_option_register(sp, &option) != ESPANK_SUCCESS) slurm_verbose("fairlead: no --fairlead here");
        break;
    default:
        break;
    }
    return ESPANK_SUCCESS;
}

/* Says whether the long option --name, or an abbreviation of at least `least` letters (getopt_long(3)), is in srun's command
 * line. The arguments of the program that srun runs are searched too. If the option is found there, the task only keeps Slurm's
 * CPUs. */
static int typed(const char *name, size_t least) {
    static char line[LIST_MAX];
    ssize_t got;
    size_t at, length;
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    got = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
    if (fd >= 0) close(fd);
    for (at = 0; got > 0 && at < (size_t)got; at += length + 1) {
        const char *word = line + at;
        length = strnlen(word, (size_t)got - at);
        line[at + length] = 0;
        if (!strncmp(word, "--", 2) && strcspn(word + 2, "=") >= least && !strncmp(word + 2, name, strcspn(word + 2, "="))) return 1;
    }
    return 0;
}

/* Says whether the user chose a CPU binding. In a step, also in an interactive step, Slurm itself sets SLURM_CPU_BIND (masks with
 * 0x), so only the option counts. In the batch step (SLURM_STEP_ID is unset, -5 or 4294967291) the variable counts too. */
static int chose_binding(void) {
    const char *step = getenv("SLURM_STEP_ID"), *bind = getenv("SLURM_CPU_BIND");
    if (bind && *bind && !strstr(bind, ":0x") && (!step || *step == '-' || !strncmp(step, "42949672", 8))) return 1;
    return typed("cpu-bind", 5) || typed("cpu_bind", 5);
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char *av[]) {
    spank_context_t where = spank_context();
    (void)sp, (void)ac, (void)av;
    if (where != S_CTX_LOCAL && where != S_CTX_ALLOCATOR) return ESPANK_SUCCESS;
    /* srun also gets the option that was given to sbatch or salloc. A variable that the user has set after that then wins. */
    if (*choice) setenv("FAIRLEAD_PROFILE", choice, where == S_CTX_ALLOCATOR || typed("fairlead", 2));
    if (where == S_CTX_LOCAL) {
        if (chose_binding()) setenv("FAIRLEAD_CPU_BIND", "user", 1);
        else unsetenv("FAIRLEAD_CPU_BIND"); /* an outer step has set it */
    }
    return ESPANK_SUCCESS;
}

/* ---- reading, always with a limit ---- */

/* Reads a regular file of root into text, with a final 0. Returns its length, or -1 if it is not such a file or does not fit. */
static ssize_t slurp(const char *path, char *text, size_t size) {
    struct stat st;
    size_t have = 0;
    ssize_t got = -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) return -1;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == 0)
        while (have < size && (got = read(fd, text + have, size - have)) > 0) have += (size_t)got;
    close(fd);
    if (got != 0 || have >= size) return -1;
    text[have] = 0;
    return strlen(text) == have ? (ssize_t)have : -1;
}

/* Copies field number `index` of a TAB separated line into out. Returns 0 if the field is missing or too long. */
static int field(const char *line, int index, char *out, size_t size) {
    size_t length;
    for (; index > 0; index--, line++)
        if (line[strcspn(line, "\t\n")] != '\t') return 0;
        else line += strcspn(line, "\t\n");
    length = strcspn(line, "\t\n");
    if (!length || length >= size) return 0;
    memcpy(out, line, length);
    out[length] = 0;
    return 1;
}

static int is(const char *line, int index, const char *expected) {
    char word[64];
    return field(line, index, word, sizeof word) && !strcmp(word, expected);
}

/* Returns the value of a decimal number below limit, without sign or leading zeros, or -1 for other text. */
static long number(const char *text, long limit) {
    long value = 0;
    if (!*text || (*text == '0' && text[1])) return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || (value = value * 10 + (*text - '0')) >= limit) return -1;
    }
    return value;
}

/* Returns the value of a variable of the task, or "" if it is not set or does not fit. */
static const char *env(spank_t sp, const char *name, char *out, int size) {
    if (spank_getenv(sp, name, out, size) != ESPANK_SUCCESS) *out = 0;
    return out;
}

static int is_set(spank_t sp, const char *name) {
    char word[2];
    spank_err_t said = spank_getenv(sp, name, word, sizeof word);
    return said == ESPANK_NOSPACE || (said == ESPANK_SUCCESS && *word);
}

static int items(const char *list) {
    int count = *list != 0;
    for (; *list; list++) count += *list == ',';
    return count;
}

static int in_list(const char *list, const char *name) {
    size_t length = strlen(name);
    for (; *list; list += strcspn(list, ",") + (list[strcspn(list, ",")] == ','))
        if (!strncmp(list, name, length) && (list[length] == ',' || !list[length])) return 1;
    return 0;
}

/* Reads hexadecimal digits as a CPU set. Returns 0 if there are no digits, too many digits, or other characters. */
static int parse_mask(const char *digits, cpus_t *out) {
    size_t length = strlen(digits);
    memset(out, 0, sizeof *out);
    if (!length || length > CPUS_MAX / 4) return 0;
    for (size_t bit = 0; length--; bit += 4) {
        const char *found = strchr("0123456789ABCDEF", digits[length]);
        if (!found) return 0;
        out->word[bit / LONG_BITS] |= (unsigned long)(found - "0123456789ABCDEF") << bit % LONG_BITS;
    }
    return 1;
}

/* ---- what the user and the site want ---- */

static int off_by_comment(spank_t sp) {
    char path[64] = "/run/fairlead/jobs/", record[WORD_MAX];
    char *end = path + strlen(path);
    uint32_t job = 0;
    char digits[12];
    size_t count = 0;
    if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS) return 0;
    do digits[count++] = (char)('0' + job % 10);
    while ((job /= 10) > 0);
    while (count > 0) *end++ = digits[--count];
    *end = 0;
    return slurp(path, record, sizeof record) > 0 && is(record, 0, "1") && is(record, 6, "off") && is(record, 7, ".");
}

/* Says whether fairlead is on for this node and this job. A malformed value means off. */
static int is_on(spank_t sp) {
    char profile[32], hooks[WORD_MAX], preset[80] = "/run/fairlead/presets/";
    if (!access("/etc/fairlead/disabled", F_OK) || off_by_comment(sp)) return 0;
    if (is_set(sp, "FAIRLEAD_PROFILE")) env(sp, "FAIRLEAD_PROFILE", profile, sizeof profile);
    else if (slurp("/etc/fairlead/hooks", hooks, sizeof hooks) < 0 || !is(hooks, 0, "1") || !field(hooks, 2, profile, sizeof profile))
        return 0;
    if (!strcmp(profile, "full") || !strcmp(profile, "minimal")) return 1;
    /* A preset of the site changes only the environment. CPUs are bound as with the profile full. */
    if (!*profile || profile[strspn(profile, "abcdefghijklmnopqrstuvwxyz0123456789-")] || !strcmp(profile, "off")) return 0;
    strcat(preset, profile);
    return is_set(sp, "FAIRLEAD_PROFILE") && !access(preset, F_OK);
}

/* Says whether Slurm chose the binding of this step and no task has GPUs of its own. Returns 0 if the user chose a binding. */
static int is_slurms(spank_t sp, const char *gpus) {
    char word[WORD_MAX], visible[WORD_MAX];
    if (strcmp(env(sp, "SLURM_CPU_BIND_TYPE", word, sizeof word), "mask_cpu:") || is_set(sp, "FAIRLEAD_CPU_BIND")) return 0;
    if (is_set(sp, "SLURM_GPUS_PER_TASK") || is_set(sp, "SLURM_NTASKS_PER_GPU")) return 0;
    if (is_set(sp, "SLURM_GPU_BIND") && strcmp(env(sp, "SLURM_GPU_BIND", word, sizeof word), "none")) return 0;
    if (is_set(sp, "SLURM_TRES_PER_TASK") && (!*env(sp, "SLURM_TRES_PER_TASK", word, sizeof word) || strstr(word, "gpu"))) return 0;
    if (number(env(sp, "SLURM_GPUS_ON_NODE", word, sizeof word), TASKS_MAX) != items(gpus)) return 0;
    if (!is_set(sp, "CUDA_VISIBLE_DEVICES")) return 1;
    return items(env(sp, "CUDA_VISIBLE_DEVICES", visible, sizeof visible)) == items(gpus);
}

/* Says whether gpus are all GPUs of the node, by the published topology. */
static int whole_node(const char *gpus) {
    static char text[TEXT_MAX];
    char word[16];
    int count = items(gpus), index = 0;
    const char *at = gpus;
    if (slurp("/run/fairlead/topology", text, sizeof text) < 0 || !is(text, 0, "1")) return 0;
    if (!field(text, 3, word, sizeof word) || number(word, TASKS_MAX) != count) return 0;
    for (; index < count; index++, at += strcspn(at, ",") + 1) { /* the list must be 0,1,2,... */
        size_t length = strcspn(at, ",");
        if (length >= sizeof word) return 0;
        memcpy(word, at, length);
        word[length] = 0;
        if (number(word, TASKS_MAX) != index) return 0;
    }
    return count > 0;
}

/* Reads Slurm's masks of all local tasks, and removes 0x and leading zeros, as in the plans. Slurm writes its own masks with 0x,
 * in capital digits and with the same width. Masks that a user typed have no 0x. Returns the number of masks, or 0 if not clear.
 * */
static int slurms_masks(char *list, const char *masks[]) {
    size_t width = 0;
    int count = 0;
    char *next = list;
    while (next) {
        char *mask = strsep(&next, ",");
        size_t length = strlen(mask);
        if (count == TASKS_MAX || length < 3 || mask[0] != '0' || mask[1] != 'x' || (width && length != width)) return 0;
        width = length;
        if (strspn(mask + 2, "0123456789ABCDEF") != length - 2) return 0;
        masks[count] = mask + 2 + strspn(mask + 2, "0");
        if (!*masks[count]) return 0;
        count++;
    }
    return count;
}

/* Returns the line of the published plan with the CPU set for local task `local`, or NULL if Slurm did not assign exactly the
 * plan's CPU sets. A task that has a CPU set of its own NUMA domain keeps it. The other tasks get the remaining CPU sets of their
 * domain in the order in which Slurm assigned them, as in slurm/task-prolog. */
static const char *planned(const char *masks[], int tasks, int local) {
    static char text[TEXT_MAX];
    static const char *lines[TASKS_MAX];
    static int domain[TASKS_MAX], assigned[TASKS_MAX]; /* by task: the domain of its GPUs; the line with its CPU set */
    char path[64] = "/run/fairlead/plans/", word[CPUS_MAX / 4 + 1], digits[8];
    char *end = path + strlen(path);
    const char *line = text;
    size_t count = 0;
    int found = 0, before = 0;
    for (int rest = tasks; count == 0 || rest > 0; rest /= 10) digits[count++] = (char)('0' + rest % 10);
    while (count > 0) *end++ = digits[--count];
    *end = 0;
    if (slurp(path, text, sizeof text) <= 0 || text[strlen(text) - 1] != '\n') return NULL;
    for (int i = 0; i < tasks; i++) assigned[i] = -1;
    for (; *line; line += strcspn(line, "\n") + 1, found++) {
        int owner = -1;
        if (found == tasks || !field(line, 0, word, sizeof word) || number(word, TASKS_MAX) != found) return NULL;
        if (!field(line, 8, word, sizeof word) || (domain[found] = (int)number(word, TASKS_MAX)) < 0 || domain[found] >= tasks) return NULL;
        if (!field(line, 7, word, sizeof word)) return NULL;
        for (int i = 0; i < tasks; i++)
            if (!strcmp(masks[i], word)) {
                if (owner >= 0) return NULL;
                owner = i;
            }
        if (owner < 0 || assigned[owner] >= 0) return NULL;
        assigned[owner] = found;
        lines[found] = line;
    }
    if (found != tasks) return NULL;
    if (domain[assigned[local]] == domain[local]) return lines[assigned[local]];
    for (int i = 0; i < local; i++) before += domain[i] == domain[local] && domain[assigned[i]] != domain[i];
    for (int i = 0; i < tasks; i++)
        if (domain[assigned[i]] == domain[local] && domain[i] != domain[local] && before-- == 0) return lines[assigned[i]];
    return NULL;
}

/* ---- MIG: the CPUs near the GPUs of the instances ---- */

static struct { cpus_t near; long node; } place[TASKS_MAX]; /* by number in CUDA_VISIBLE_DEVICES */
static struct { cpus_t cpus; int low, first, last, cores, threads; } set[TASKS_MAX]; /* by task: Slurm's CPU set; cores by their order */
static short core_of[CPUS_MAX]; /* the order of cores in the topology file, from 1 on; 0 for a CPU that is not there */

static int has(const cpus_t *cpus, int cpu) { return cpus->word[cpu / LONG_BITS] >> cpu % LONG_BITS & 1; }

static int is_within(const cpus_t *inner, const cpus_t *outer) {
    for (size_t i = 0; i < CPUS_MAX / LONG_BITS; i++)
        if (inner->word[i] & ~outer->word[i]) return 0;
    return 1;
}

static int is_apart(const cpus_t *one, const cpus_t *other) {
    for (size_t i = 0; i < CPUS_MAX / LONG_BITS; i++)
        if (one->word[i] & other->word[i]) return 0;
    return 1;
}

/* Reads a list such as 0-3,8 as a CPU set. Returns 0 for other text. */
static int parse_list(char *list, cpus_t *out) {
    memset(out, 0, sizeof *out);
    while (list) {
        char *part = strsep(&list, ","), *first = strsep(&part, "-");
        long low = number(first, CPUS_MAX), high = part ? number(part, CPUS_MAX) : low;
        if (low < 0 || high < low) return 0;
        for (; low <= high; low++) out->word[low / LONG_BITS] |= 1UL << low % LONG_BITS;
    }
    return 1;
}

/* Reads the places of the devices that `visible` names by UUID, and the cores. Returns the number of devices, or 0 if one of them is
 * not in the topology file, is named twice, or has no known CPUs. */
static int instances(const char *visible) {
    static char text[TEXT_MAX], list[LIST_MAX];
    static char known[TASKS_MAX];
    char uuid[128], node[16];
    int count = items(visible), cores = 0, found = 0;
    if (!count || count > TASKS_MAX || slurp("/run/fairlead/topology", text, sizeof text) < 0 || !is(text, 0, "1")) return 0;
    memset(known, 0, sizeof known);
    memset(core_of, 0, sizeof core_of);
    for (const char *line = text; *line; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n')) {
        int mig = is(line, 0, "mig"), cpu;
        cpus_t cpus;
        if (is(line, 0, "core")) {
            if (cores == CPUS_MAX || !field(line, 4, list, sizeof list) || !parse_list(list, &cpus)) return 0;
            for (cores++, cpu = 0; cpu < CPUS_MAX; cpu++)
                if (has(&cpus, cpu)) core_of[cpu] = (short)cores;
        }
        if ((!mig && !is(line, 0, "gpu")) || !field(line, mig ? 1 : 3, uuid, sizeof uuid)) continue;
        const char *at = visible;
        for (int i = 0; i < count; i++, at += strcspn(at, ",") + 1) {
            if (strncmp(at, uuid, strcspn(at, ",")) || strlen(uuid) != strcspn(at, ",")) continue;
            if (known[i]++ || !field(line, mig ? 7 : 6, list, sizeof list) || !parse_list(list, &place[i].near)) return 0;
            place[i].node = field(line, mig ? 6 : 5, node, sizeof node) ? number(node, NODES_MAX) : -1;
            found++;
            break; /* a UUID that is named twice leaves the second one without a place */
        }
    }
    return found == count ? count : 0;
}

/* Writes the UUIDs of the devices that these GRES indices mean, where gres.conf lists the devices of a node with MIG. Returns 0 if one
 * of them is not listed. */
static int listed(const char *gpus, char *uuids, size_t size) {
    static char text[TEXT_MAX];
    char index[16], uuid[128];
    size_t used = 0, length;
    if (slurp("/run/fairlead/topology", text, sizeof text) < 0 || !is(text, 0, "1")) return 0;
    for (const char *at = gpus; ; at += length + 1) {
        int found = 0;
        length = strcspn(at, ",");
        for (const char *line = text; *line && !found; line += strcspn(line, "\n") + (line[strcspn(line, "\n")] == '\n'))
            found = is(line, 0, "gres") && field(line, 1, index, sizeof index) && strlen(index) == length &&
                    !strncmp(index, at, length) && field(line, 2, uuid, sizeof uuid);
        if (!found || used + strlen(uuid) + 2 > size) return 0;
        if (used) uuids[used++] = ',';
        strcpy(uuids + used, uuid);
        used += strlen(uuid);
        if (!at[length]) return 1;
    }
}

/* Reads Slurm's CPU sets. Returns 0 unless they share no core, and each has the same number of cores with the same number of CPUs. */
static int read_sets(const char *masks[], int tasks) {
    static short owner[CPUS_MAX + 1], count[CPUS_MAX + 1];
    memset(owner, 0, sizeof owner);
    for (int i = 0; i < tasks; i++) {
        memset(count, 0, sizeof count);
        set[i].first = set[i].last = set[i].cores = set[i].threads = 0, set[i].low = -1;
        if (!parse_mask(masks[i], &set[i].cpus)) return 0;
        for (int cpu = 0; cpu < CPUS_MAX; cpu++) {
            int core = core_of[cpu];
            if (!has(&set[i].cpus, cpu)) continue;
            if (set[i].low < 0) set[i].low = cpu;
            if (!core || (owner[core] && owner[core] != i + 1)) return 0;
            owner[core] = (short)(i + 1);
            count[core]++;
        }
        for (int core = 1; core <= CPUS_MAX; core++) {
            if (!count[core]) continue;
            if (!set[i].cores++) set[i].first = core, set[i].threads = count[core];
            if (count[core] != set[i].threads) return 0;
            set[i].last = core;
        }
        if (!set[i].cores || set[i].cores != set[0].cores || set[i].threads != set[0].threads) return 0;
        if (set[i].low < set[0].low) return 0; /* the first of Slurm's own masks has the lowest CPU */
    }
    return 1;
}

/* Returns which of Slurm's masks local task `local` gets, or -1 to keep its own. Task i has instance i, and a group of instances or a
 * part of one if there are not as many (as in binding_plan.py, assign_gpus). */
static int near_instances(const char *masks[], int tasks, int local, int devices) {
    static int wants[TASKS_MAX], lies[TASKS_MAX]; /* by task: the first device with the CPUs near its GPUs, and with its CPU set */
    int before = 0;
    if (!read_sets(masks, tasks)) return -1;
    for (int i = 0; i < devices; i++)
        for (int j = 0; j < i; j++)
            if (memcmp(&place[i].near, &place[j].near, sizeof place[i].near) && !is_apart(&place[i].near, &place[j].near)) return -1;
    for (int i = 0; i < tasks; i++) {
        int from = tasks <= devices ? i * devices / tasks : i % devices, to = tasks <= devices ? (i + 1) * devices / tasks : from + 1;
        for (int d = from + 1; d < to; d++)
            if (memcmp(&place[d].near, &place[from].near, sizeof place[d].near)) return -1;
        for (wants[i] = 0; memcmp(&place[wants[i]].near, &place[from].near, sizeof place[from].near);) wants[i]++;
        for (lies[i] = 0; lies[i] < devices && !is_within(&set[i].cpus, &place[lies[i]].near);) lies[i]++;
        if (lies[i] == devices) return -1;
    }
    for (int i = 0; i < tasks; i++) { /* as many CPU sets lie near a GPU as tasks want to, and no two of these are interleaved */
        int balance = 0;
        for (int j = 0; j < tasks; j++) {
            balance += (wants[j] == wants[i]) - (lies[j] == wants[i]);
            if (j != i && lies[j] == lies[i] && set[j].first < set[i].last && set[i].first < set[j].last) return -1;
        }
        if (balance) return -1;
    }
    if (lies[local] == wants[local]) return local;
    for (int i = 0; i < local; i++) before += wants[i] == wants[local] && lies[i] != wants[i];
    for (int i = 0; i < tasks; i++)
        if (lies[i] == wants[local] && wants[i] != lies[i] && before-- == 0) return i;
    return -1;
}

/* ---- binding ---- */

/* Replaces the CPUs that Slurm assigned to the task by the planned CPUs. Returns 1 if the task has the planned CPUs. If somebody
 * else has changed the mask before, it stays. If the kernel sets only a part of the new mask (a cpuset), the old mask is
 * restored. */
static int bind_cpus(const char *slurms, const char *planned) {
    cpus_t before = {{0}}, now = {{0}}, from, to;
    if (!parse_mask(planned, &to) || !parse_mask(slurms, &from)) return 0;
    if (sched_getaffinity(0, sizeof before, (cpu_set_t *)&before) || memcmp(&before, &from, sizeof before)) return 0;
    if (!memcmp(&from, &to, sizeof to)) return 1;
    if (sched_setaffinity(0, sizeof to, (cpu_set_t *)&to)) return 0;
    if (!sched_getaffinity(0, sizeof now, (cpu_set_t *)&now) && !memcmp(&now, &to, sizeof to)) return 1;
    if (sched_setaffinity(0, sizeof before, (cpu_set_t *)&before)) slurm_verbose("fairlead: the CPUs could not be restored");
    return 0;
}

/* Makes the task prefer the memory of a NUMA node, which is that of the planned CPUs, if nobody chose a memory policy. node: -1 if
 * the CPUs are on several nodes. A NUMA node with CPUs is never GPU memory. */
static void prefer_memory(spank_t sp, long node) {
    unsigned long nodes[NODES_MAX / LONG_BITS] = {0};
    char word[16];
    int mode = -1;
    if (node < 0) return;
    if (is_set(sp, "SLURM_MEM_BIND_TYPE") && strcmp(env(sp, "SLURM_MEM_BIND_TYPE", word, sizeof word), "none")) return;
    if (syscall(SYS_get_mempolicy, &mode, NULL, 0UL, NULL, 0UL) || mode != MODE_DEFAULT) return;
    nodes[node / LONG_BITS] = 1UL << node % LONG_BITS;
    if (syscall(SYS_set_mempolicy, MODE_PREFERRED, nodes, (unsigned long)NODES_MAX)) slurm_debug("fairlead: no memory policy is set");
}

int slurm_spank_task_init(spank_t sp, int ac, char *av[]) {
    static char list[LIST_MAX], uuids[LIST_MAX];
    static const char *masks[TASKS_MAX];
    static const char names[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_,";
    static char gpus[WORD_MAX], skip[WORD_MAX], visible[WORD_MAX], mask[CPUS_MAX / 4 + 1], word[16];
    const char *wanted = NULL, *line;
    uint32_t step = 0, tasks = 0;
    int local = -1, count, mig, devices, at;
    long node = -1;

    if (*choice && spank_setenv(sp, "FAIRLEAD_PROFILE", choice, 0) == ESPANK_SUCCESS) /* only if --export=NONE removed it */
        slurm_debug("fairlead: %s", choice);
    if (!is_on(sp)) return ESPANK_SUCCESS;
    if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step >= 0xfffffff0u) return ESPANK_SUCCESS; /* batch, extern */
    if (spank_get_item(sp, S_TASK_ID, &local) != ESPANK_SUCCESS || local < 0) return ESPANK_SUCCESS;
    if (spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS || tasks < 2) return ESPANK_SUCCESS;
    env(sp, "SLURM_STEP_GPUS", gpus, sizeof gpus);
    env(sp, "FAIRLEAD_SKIP", skip, sizeof skip);
    if (is_set(sp, "FAIRLEAD_SKIP") && (!*skip || skip[strspn(skip, names)])) return ESPANK_SUCCESS; /* a malformed value means off */
    if (!*gpus || in_list(skip, "CPUS") || !is_slurms(sp, gpus)) return ESPANK_SUCCESS;
    mig = strstr(env(sp, "CUDA_VISIBLE_DEVICES", visible, sizeof visible), "MIG") != NULL; /* then Slurm's indices count instances */
    if (!mig && *visible && !visible[strspn(visible, "0123456789,")] && listed(gpus, uuids, sizeof uuids)) {
        mig = 1;
        devices = instances(uuids);
    } else devices = mig ? instances(visible) : 0;
    if (mig ? !devices : !whole_node(gpus)) return ESPANK_SUCCESS;
    env(sp, "SLURM_CPU_BIND_LIST", list, sizeof list);
    count = slurms_masks(list, masks);
    if (count < 2 || (uint32_t)count != tasks || local >= count) return ESPANK_SUCCESS;
    if (mig) {
        at = near_instances(masks, count, local, devices);
        wanted = at < 0 ? NULL : masks[at];
        node = count <= devices ? place[local * devices / count].node : place[local % devices].node;
    } else if (strchr("13579BDF", masks[0][strlen(masks[0]) - 1]) && (line = planned(masks, count, local))) {
        /* Slurm's first task has CPU 0 */
        wanted = field(line, 7, mask, sizeof mask) ? mask : NULL;
        node = field(line, 4, word, sizeof word) ? number(word, NODES_MAX) : -1;
    }
    if (wanted && bind_cpus(masks[local], wanted) && !in_list(skip, "MEMORY") && !(ac > 0 && !strcmp(av[0], "memory=no")))
        prefer_memory(sp, node);
    return ESPANK_SUCCESS;
}
