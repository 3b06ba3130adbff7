# The parts of the package's scriptlets that both formats share. Each scriptlet begins with this text. They use the shell, grep
# and systemctl, and no network and no Python.

running() { [ -d /run/systemd/system ]; }

reload_units() { if running; then systemctl daemon-reload || :; fi; }

# After an upgrade, when all new files are there: an agent that runs gets the new program. An agent that does not run stays off.
restart_agent() { if running; then systemctl try-restart fairlead-agent.service || :; fi; }

# Slurm fails a job if its configuration names a hook that is not there. So a removal is refused as long as a file does.
refuse_named_hooks() {
	[ "${FAIRLEAD_FORCE-}" = 1 ] && return 0
	for conf in /etc/slurm/*.conf /run/slurm/conf/*.conf; do
		[ -r "$conf" ] || continue
		line=$(grep -E '^[^#]*(/etc/slurm/fairlead/(task-prolog|bind-plan|health-check)|/etc/slurm/(prolog|epilog)\.d/50-fairlead)' "$conf" | head -n 1)
		[ -n "$line" ] || continue
		printf 'fairlead: %s still says %s; a job would fail without that file\n' "$conf" "$line" >&2
		echo "  next: take the line out and run \`scontrol reconfigure\`, or set FAIRLEAD_FORCE=1 for this removal" >&2
		exit 1
	done
}

stop_units() {
	for unit in fairlead-agent.service fairlead-apply.service /etc/systemd/system/*.wants/fairlead-scratch@*; do
		unit=${unit##*/}
		case $unit in *'*'*) continue ;; esac
		if running; then systemctl --quiet disable --now "$unit"; else systemctl --quiet disable "$unit"; fi >/dev/null 2>&1 || :
	done
}

# What fairlead itself has written beside the files of the package, so that the package's folders are empty when they are removed.
remove_written() { rm -rf /var/cache/fairlead/python/* /run/fairlead /opt/fairlead/.lock /opt/fairlead/.unfinished; }

