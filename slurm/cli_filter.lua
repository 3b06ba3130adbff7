-- This is fairlead's cli_filter, for sites that prefer Lua to the SPANK plugin (slurm/spank). slurm.conf needs
-- CliFilterPlugins=cli_filter/lua. This file must be in the folder of slurm.conf on submit hosts and nodes, because srun inside
-- a job runs it on the node. It applies no binding plan.
-- - If --comment contains the word `fairlead:off`, `fairlead:minimal` or `fairlead:on`, the job gets FAIRLEAD_PROFILE with that
--   value. salloc has no --export. For salloc the prolog sees `fairlead:off` in the comment. The other two words have no effect.
-- - If the user typed --cpu-bind, srun sets FAIRLEAD_CPU_BIND=user. The task prolog then does not change that step's CPUs.
-- - srun --gpus-per-task without a choice of --distribution, --cpu-bind or --gpu-bind gets --distribution=*:block. Slurm 22.05
--   assigns GPU i to task i, but takes CPUs from the sockets by turns. With the option task i has GPU i and CPUs near it on 22.05,
--   24.11 and 26.05 (tested).
-- The variables are added to --export, because a cli_filter can change a job's environment in no other way. They are also added to
-- a user's own --export, but --export=NONE and NIL are not changed. A variable that is already in the environment wins over the
-- comment. So a step that starts other steps passes its FAIRLEAD_CPU_BIND on to them. This file never refuses a job.
-- If a site has a cli_filter.lua, its own slurm_cli_pre_submit calls fairlead_pre_submit(options).
-- Source: cli_filter_plugins(5) and etc/cli_filter.lua.example of Slurm.

local PROFILES = { on = "full", full = "full", off = "off", minimal = "minimal" }

local function profile_of(comment)
	local word = (" " .. comment):match("[%s,;]fairlead:(%a+)")
	return word and (PROFILES[word] or "off") -- a malformed word means off
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
