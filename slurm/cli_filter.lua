-- fairlead's cli_filter, for sites that prefer lua to the SPANK plugin (slurm/spank). slurm.conf needs
-- CliFilterPlugins=cli_filter/lua, and this file must be beside slurm.conf on submit hosts and nodes, because srun inside a job runs
-- it there. It makes no plan.
--
-- - `--comment=fairlead:off`, `fairlead:minimal` or `fairlead:on`, among other words or alone, becomes FAIRLEAD_PROFILE of the job.
--   salloc has no --export. There the prolog sees `off` in the comment, and the other words have no effect.
-- - srun marks a --cpu-bind that the user typed (FAIRLEAD_CPU_BIND=user). The task prolog then does not change that step's CPUs.
-- - srun --gpus-per-task without a choice of --distribution, --cpu-bind or --gpu-bind gets --distribution=*:block. Slurm 22.05
--   assigns GPU i to task i, but takes CPUs from the sockets by turns. With the option task i has GPU i and CPUs near it on 22.05,
--   24.11 and 26.05 (tested).
--
-- The variables are added to --export, the only way in which a cli_filter can change a job's environment. A user's own --export
-- stays and gets these names added; --export=NONE and NIL are not changed. A variable that the environment already has wins over the
-- comment. A step that starts other steps passes its mark on, because srun does not overwrite it. Nothing here refuses a job.
-- A site that has a cli_filter.lua calls fairlead_pre_submit(options) from its own slurm_cli_pre_submit.
-- Source: cli_filter_plugins(5) and etc/cli_filter.lua.example of Slurm.

local PROFILES = { on = "full", full = "full", off = "off", minimal = "minimal" }

local function profile_of(comment)
	local word = (" " .. comment):match("[%s,;]fairlead:(%a+)")
	return word and (PROFILES[word] or "off") -- malformed means off
end

local function in_order(options)
	for _, name in ipairs({ "distribution", "gpu-bind", "tres-bind" }) do
		local typed = options[name]
		if typed and typed ~= "" and typed ~= "unknown" then return end
	end
	local gpus = options["gpus-per-task"]
	if gpus and gpus ~= "" then options["distribution"] = "*:block" end
end

function fairlead_pre_submit(options)
	local kind = options["type"]
	if kind ~= "srun" and kind ~= "sbatch" then return end
	local added = {}
	local profile = profile_of(options["comment"] or "")
	if profile then added[#added + 1] = "FAIRLEAD_PROFILE=" .. profile end
	if kind == "srun" then
		local typed = options["cpu-bind"]
		if typed and typed ~= "" then
			added[#added + 1] = "FAIRLEAD_CPU_BIND=user"
		elseif (os.getenv("FAIRLEAD_PROFILE") or profile) ~= "off" then
			in_order(options)
		end
	end
	if #added == 0 then return end
	local export = options["export"] or ""
	if export == "NONE" or export == "NIL" then return end
	if export == "" then export = "ALL" end
	options["export"] = export .. "," .. table.concat(added, ",")
end

function slurm_cli_setup_defaults(options, early_pass)
	return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
	pcall(fairlead_pre_submit, options) -- an error here must not keep anybody from submitting
	return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
	return slurm.SUCCESS
end
