/* This is not pyxis. It is a stand-in for pyxis and enroot, for which no package is to be had. It does what their sources and
 * documents say that matters to a task prolog: slurm_spank_task_init runs in the task's process, as the user, before the task
 * prolog. It imports the image's environment, enters a user and a mount namespace of its own, mounts the lines of
 * /etc/enroot/mounts.d, and makes the image the root (pyxis_slurmstepd.c; enroot's doc/image-format.md). The image is a folder.
 * A task gets a container if STAND_IN_IMAGE names one. As with enroot, the user owns the files of the image.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <sched.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

SPANK_PLUGIN(pyxis_stand_in, 1);

static int failed(const char *what)
{
	slurm_error("pyxis stand-in: %s: %s", what, strerror(errno));
	return -1;
}

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t length = (ssize_t)strlen(text);
	if (fd < 0 || write(fd, text, (size_t)length) != length)
		return failed(path);
	close(fd);
	return 0;
}

/* As pyxis does: what the image sets, in etc/environment, overrides the job's variables. */
static void import_environment(spank_t sp, const char *image)
{
	char path[PATH_MAX], line[4096];
	snprintf(path, sizeof(path), "%s/etc/environment", image);
	FILE *file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		char *value = strchr(line, '=');
		line[strcspn(line, "\n")] = 0;
		if (value) {
			*value = 0;
			spank_setenv(sp, line, value + 1, 1);
		}
	}
	if (file)
		fclose(file);
}

static int enter_namespaces(void)
{
	char map[64], groups[64];
	snprintf(map, sizeof(map), "%u %u 1", (unsigned)getuid(), (unsigned)getuid());
	snprintf(groups, sizeof(groups), "%u %u 1", (unsigned)getgid(), (unsigned)getgid());
	prctl(PR_SET_DUMPABLE, 1); /* else /proc/self belongs to root */
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		return failed("unshare");
	return put("/proc/self/setgroups", "deny") || put("/proc/self/uid_map", map) || put("/proc/self/gid_map", groups) ? -1 : 0;
}

/* Makes the missing folders of a path below the image, and the last part as a folder or as a file. */
static void create(char *path, const char *image, int folder)
{
	for (char *at = path + strlen(image) + 1; (at = strchr(at, '/')); at++) {
		*at = 0;
		mkdir(path, 0755);
		*at = '/';
	}
	int fd = folder ? mkdir(path, 0755) : open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
	if (!folder && fd >= 0)
		close(fd);
}

static int bind_mount(const char *image, const char *from, const char *to, char *options)
{
	unsigned long flags = 0;
	int nofail = 0;
	char target[PATH_MAX], *rest = NULL;
	struct statvfs now;
	snprintf(target, sizeof(target), "%s%s", image, to);
	for (char *word = strtok_r(options, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		flags |= strcmp(word, "ro") ? 0 : MS_RDONLY;
		flags |= strcmp(word, "nosuid") ? 0 : MS_NOSUID;
		flags |= strcmp(word, "nodev") ? 0 : MS_NODEV;
		flags |= strcmp(word, "noexec") ? 0 : MS_NOEXEC;
		nofail |= !strcmp(word, "nofail");
		if (!strncmp(word, "x-create=", 9) && !access(from, F_OK))
			create(target, image, !strcmp(word + 9, "dir"));
	}
	if (mount(from, target, NULL, MS_BIND | MS_REC, NULL))
		return nofail ? 0 : failed(target);
	if (!flags)
		return 0;
	if (statvfs(target, &now)) /* flags of the mount below may not be dropped; these have the same numbers */
		return failed(target);
	flags |= now.f_flag & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC);
	return mount(NULL, target, NULL, MS_REMOUNT | MS_BIND | flags, NULL) ? failed(target) : 0;
}

static int mount_fstabs(const char *image)
{
	glob_t found;
	char line[4096], from[1024], to[1024], options[1024];
	if (glob("/etc/enroot/mounts.d/*.fstab", 0, NULL, &found))
		return 0;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *file = fopen(found.gl_pathv[i], "re");
		while (file && fgets(line, sizeof(line), file))
			if (*line != '#' && sscanf(line, "%1023s %1023s %*s %1023s", from, to, options) == 3)
				if (bind_mount(image, from, to, options))
					return -1;
		if (file)
			fclose(file);
	}
	globfree(&found);
	return 0;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	static const char *const kept[] = {"/proc", "/sys", "/dev", "/tmp"};
	char image[PATH_MAX / 2];
	(void)ac;
	(void)av;
	if (spank_getenv(sp, "STAND_IN_IMAGE", image, sizeof(image)) != ESPANK_SUCCESS)
		return 0;
	import_environment(sp, image);
	if (enter_namespaces())
		return -1;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount(image, image, NULL, MS_BIND | MS_REC, NULL))
		return failed(image);
	for (size_t i = 0; i < sizeof(kept) / sizeof(*kept); i++) {
		char none[] = "";
		if (bind_mount(image, kept[i], kept[i], none))
			return -1;
	}
	if (mount_fstabs(image))
		return -1;
	if (chdir(image) || syscall(SYS_pivot_root, ".", ".") || umount2(".", MNT_DETACH) || chdir("/"))
		return failed("pivot_root");
	return 0;
}
