// SPDX-License-Identifier: GPL-2.0
/* Does for a test what only a kernel can do on a machine without a GPU. It writes a line into the kernel's own log (facility 0), as
   NVIDIA's driver does, and it answers for /dev/nvidia* (major 195), so that Slurm constrains devices that a job can open.

       echo 'NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.' > /sys/module/fakegpu/parameters/say */
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/moduleparam.h>

static int fakegpu_say(const char *text, const struct kernel_param *kp)
{
	size_t length = strlen(text);

	while (length && text[length - 1] == '\n')
		length--;
	/* NVIDIA's driver marks each of its lines as a continuation (kernel-open/nvidia/os-interface.c, nv_printf). */
	if (!strncmp(text, "NVRM: ", 6))
		printk(KERN_ERR KERN_CONT "%.*s\n", (int)length, text);
	else
		printk(KERN_ERR "%.*s\n", (int)length, text);
	return 0;
}

static const struct kernel_param_ops say_ops = { .set = fakegpu_say };
module_param_cb(say, &say_ops, NULL, 0200);

static const struct file_operations fakegpu_ops = { .owner = THIS_MODULE };

static int __init fakegpu_init(void)
{
	return register_chrdev(195, "nvidia", &fakegpu_ops);
}

static void __exit fakegpu_exit(void)
{
	unregister_chrdev(195, "nvidia");
}

module_init(fakegpu_init);
module_exit(fakegpu_exit);
MODULE_DESCRIPTION("Kernel log lines and device files of a GPU that does not exist");
MODULE_LICENSE("GPL");
