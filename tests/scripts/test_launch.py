"""The scripts that scripts.launch writes for each engine, and what it refuses before anything is submitted."""

import copy
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs import registry
from configs.registry import ConfigError
from models.errors import UserError
from models.sharding.layout import LayoutError
from scripts import cli, launch
from scripts.launching import gke, job, slurm, tpu_vm
from trainers import runlog

SCHEMAS = Path(sys.prefix) / "launch"  # make setup DEVICE=launch


def asked(experiment: str, topology: str, workdir: str = "gs://bucket/runs/mine", **fields) -> job.Job:
    e = registry.load(experiment)
    return job.Job(e, (experiment,), job.machines_of(topology), workdir, fields.pop("data", ""), restarts=3, **fields)


@pytest.mark.parametrize(
    ("topology", "hosts", "per_host"),
    [
        ("v4:8x16x16", 512, 4),
        ("v5e:16x16", 64, 4),
        ("v6e:2x4", 1, 8),
        ("tpu7x:4x4x4", 16, 8),
        ("2xv6e:16x16", 128, 4),
        ("gpu:4x8", 4, 8),
        ("cpu:2x1", 2, 1),
    ],
)
def test_a_topology_is_hosts_with_devices(topology, hosts, per_host):
    machines = job.machines_of(topology)
    assert (machines.hosts, machines.per_host, str(machines)) == (hosts, per_host, topology)


@pytest.mark.parametrize(
    ("experiment", "layout", "topology", "parts"),
    [
        ("gpt.gspmd_1t", "", "v4:8x8x16", ["2,048 devices", "v4:8x8x16 has 1,024", "--topology v4:8x16x16"]),
        ("gpt.quickstart", "fully_sharded:2x4", "gpu:2x2", ["8 devices", "gpu:2x2 has 4", "--topology gpu:4x2"]),
        ("gpt.quickstart", "fully_sharded:3x4", "v4:2x2x3", ["'embed' of size 256", "the 3 shards", "nearest that fits is 2"]),
        ("gpt.quickstart", "", "v4:1x2x4", ["v4:1x2x4", "2x2x1 chips"]),
        ("gpt.quickstart", "", "v44:2x2x2", ["'v44'", "did you mean 'v4'?"]),
        ("gpt.quickstart", "", "gpu:8", ["'gpu:8'", "as gpu:2x4"]),
        ("gpt.quickstart", "", "2xv7:4x4", ["'2xv7'", "'v4'"]),
        ("gpt.quickstart", "fully_sharded:8x1", "2xv4:2x2x1", ["8 in 2 slices", "--topology v4:2x2x2", "--layout 2xNAME"]),
        ("gpt.quickstart", "2xfully_sharded:4x1", "v4:2x2x2", ["slice 2 x data 4", "--topology 2xv4:1x2x2"]),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_in_one_line(experiment, layout, topology, parts):
    e = registry.load(experiment)
    parser = cli.parser("")
    cli.add_experiment(parser)
    args, _ = parser.parse_known_args([experiment, *(["--layout", layout] if layout else [])])
    e = cli.chosen(args, [])
    with pytest.raises(ValueError) as caught:
        job.check(e, job.machines_of(topology))
    assert all(part in str(caught.value) for part in parts), caught.value
    assert len(str(caught.value).splitlines()) == 1


def test_a_mesh_that_does_not_lie_on_the_torus_is_refused():
    """256 x 8 chips, asked to lie along axes of 16 and 8."""
    e = registry.load("gpt.gspmd_1t")
    e = dataclasses.replace(e, layout=dataclasses.replace(e.layout, torus=(("data", "z"), ("model", "x"))))
    with pytest.raises(LayoutError, match="torus data='z' has 16 places, not 256"):
        job.check(e, job.machines_of("v4:8x16x16"))


def test_every_engine_runs_the_same_command_and_restarts_on_the_preemption_code():
    """The command differs in the interpreter alone; 75 is in no list of final codes; the plan's options are named."""
    assert runlog.PREEMPTED not in job.FINAL
    cloud = asked("gpt.gspmd_1t", "v4:8x16x16")
    shared = asked("gpt.gspmd_1t", "v4:8x16x16", "/mnt/bucket/runs/mine")
    command = "-m scripts.train gpt.gspmd_1t --workdir /mnt/bucket/runs/mine --distributed"
    scripts = [slurm.script(shared), gke.script(cloud, "image", False), tpu_vm.script(cloud, "zone", False)]
    for text in scripts:
        assert text.count(command) == 1
        assert "xla_tpu_enable_windowed_einsum_for_all_gather=false" in text  # of the set scatter_windowed
    assert all("0|2|74|76|77)" in text for text in (scripts[0], scripts[2]))
    (replicated,) = gke.manifest(cloud, "image", False)["spec"]["replicatedJobs"]
    (rule,) = replicated["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and rule["onExitCodes"]["values"] == [2, 74, 76, 77]


def test_a_jobset_starts_all_its_pods_again_unless_the_exit_code_is_final():
    """Neither a pod nor a Job is started again by itself: what ends one ends the Job, and JobSet's default is to make all Jobs
    anew, as often as --restarts says. A Job that the pods' own policy has failed ends the JobSet."""
    spec = gke.manifest(asked("gpt.quickstart", "2xv6e:4x4"), "image", False)["spec"]
    (rule,) = spec["failurePolicy"].pop("rules")
    assert rule == {"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    assert spec["failurePolicy"] == {"maxRestarts": 3}
    job_spec = spec["replicatedJobs"][0]["template"]["spec"]
    assert job_spec["backoffLimit"] == 0 and job_spec["template"]["spec"]["restartPolicy"] == "Never"


def test_kubernetes_is_asked_for_chips():
    """A tpu7x has two devices: a host has four chips and eight devices."""
    (replicated,) = gke.manifest(asked("gpt.quickstart", "tpu7x:2x2x2"), "image", False)["spec"]["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}}
    assert job.machines_of("tpu7x:2x2x2").devices == 16


@pytest.mark.parametrize(
    ("write", "parts"),
    [
        (lambda: slurm.script(asked("gpt.quickstart", "gpu:2x4")), ["gs://bucket/runs/mine", "all nodes see"]),
        (lambda: gke.script(asked("gpt.quickstart", "gpu:2x4"), "image", False), ["gpu:2x4", "TPU slices"]),
        (lambda: gke.script(asked("gpt.quickstart", "v4:2x2x2"), "", False), ["--image"]),
        (lambda: slurm.script(asked("gpt.quickstart", "2xv4:2x2x2", "/w")), ["2xv4:2x2x2", "one slice, as v4:2x2x2"]),
        (lambda: tpu_vm.script(asked("gpt.quickstart", "v4:2x2x2", "runs/x"), "zone", False), ["runs/x", "gs://bucket"]),
        (lambda: tpu_vm.script(asked("gpt.quickstart", "tpu7x:2x2x1"), "zone", False), ["tpu7x:2x2x1", "--on gke"]),
        (lambda: job.mounted("gs://bucket"), ["'gs://bucket'", "a bucket and a folder"]),
        (lambda: job.mounted("s3://bucket/runs"), ["'s3://bucket/runs'", "gs://bucket/runs/mine"]),
    ],
)
def test_what_an_engine_lacks_is_refused(write, parts):
    with pytest.raises(ValueError) as caught:
        write()
    assert all(part in str(caught.value) for part in parts), caught.value


def test_slices_are_jobs_of_one_jobset_that_meet_at_the_first_pod():
    """Each slice is a Job with a pod for each of its hosts, and knows its number, how many there are, and where they meet; Google
    Cloud tells TPU VMs. A single slice is told nothing."""
    two, one = (asked("gpt.quickstart", f"{prefix}v6e:4x4") for prefix in ("2x", ""))
    (replicated,) = gke.manifest(two, "image", False)["spec"]["replicatedJobs"]
    job_spec = replicated["template"]["spec"]
    assert (replicated["replicas"], job_spec["parallelism"], job_spec["completions"]) == (2, 4, 4)
    pod = job_spec["template"]["spec"]
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    variables = {variable["name"]: variable for variable in pod["containers"][0]["env"]}
    assert variables["MEGASCALE_NUM_SLICES"]["value"] == "2"
    assert variables["MEGASCALE_COORDINATOR_ADDRESS"]["value"] == "gpt-quickstart-slice-0-0.gpt-quickstart"
    number = variables["MEGASCALE_SLICE_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert number == "metadata.annotations['jobset.sigs.k8s.io/job-index']"
    assert "MEGASCALE" not in gke.script(one, "image", False)
    assert " --node-count=2 --node-prefix=gpt-quickstart " in tpu_vm.script(two, "zone", False)
    assert "--node-id=gpt-quickstart" in tpu_vm.script(one, "zone", False)


@pytest.mark.integration
@pytest.mark.parametrize("topology", ["v4:8x16x16", "2xv4:8x8x16"])
def test_kubernetes_and_jobset_know_every_field_of_the_manifest(topology):
    """The Job satisfies Kubernetes' own schema, strictly; JobSet's generated classes take the manifest and lose nothing of it."""
    if not SCHEMAS.exists():
        pytest.skip("the schemas are not installed: make setup DEVICE=launch")
    manifest = gke.manifest(asked("gpt.gspmd_1t", topology, data="gs://other/data"), "registry/image:1", True)
    check = """
import json, sys
import kubernetes_validate
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
for manifest in map(json.loads, sys.stdin):
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "slice"}, "spec": spec}
    try:
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
        same = JobsetV1alpha2JobSet.from_dict(manifest).to_dict() == manifest
        print("sound" if same else "a field is unknown to JobSet")
    except Exception as error:
        print(type(error).__name__)
"""
    misspelt, mistyped = copy.deepcopy(manifest), copy.deepcopy(manifest)
    misspelt["spec"]["failurePolicy"]["maxRestart"] = 3
    mistyped["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = "many"
    done = subprocess.run(
        [sys.executable, "-S", "-c", check],
        input="\n".join(map(json.dumps, (manifest, misspelt, mistyped))),
        env=os.environ | {"PYTHONPATH": str(SCHEMAS)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\n")[:3] == ["sound", "a field is unknown to JobSet", "ValidationError"]


GCLOUD = """#!/bin/bash
# Answers as Google Cloud does: the first machines are taken back, the second ones finish.
echo "$*" >> $STATE/calls
case "$*" in
  *" create "*) cp "$(sed 's/.*startup-script=//' <<< "$*")" $STATE/startup ;;
  *"storage cp -"*) cat > $STATE/code.tar.gz ;;
  *"storage cat"*) [ $(grep -c ' create ' $STATE/calls) = 2 ] && echo $CODE ;;
  *" describe "*) echo SUSPENDED ;;
esac
"""


@pytest.mark.integration
def test_tpu_vms_that_are_taken_back_are_requested_again(tmp_path):
    """The script, with a gcloud that notes its calls: upload, create, taken back, delete, create, finished, delete."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "gcloud").write_text(GCLOUD)
    (tools / "gcloud").chmod(0o755)
    text = tpu_vm.script(asked("gpt.gspmd_1t", "v4:8x16x16"), "zone", True)
    environment = os.environ | {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "STATE": str(tmp_path),
        "CODE": "76",
        "POLL_SECONDS": "0",
    }
    done = subprocess.run(["bash", "-c", text], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (76, "exit code 76"), done.stderr
    calls = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    made = [words[3] for words in calls if "queued-resources" in words]
    assert made == ["create", "describe", "delete", "create", "delete"]
    assert {"--type=v4", "--topology=8x16x16", "--spot", "--zone=zone"} <= set(calls[2])
    assert (tmp_path / "code.tar.gz").stat().st_size > 10_000
    startup = (tmp_path / "startup").read_text()
    assert startup.startswith("#!/bin/bash") and "gcsfuse" in startup
    assert subprocess.run(["bash", "-n"], input=startup, text=True, check=False).returncode == 0


@pytest.mark.parametrize("character", ["\n", "\r", "\0", "\x1b", "\x85", "\u2028"])
@pytest.mark.parametrize("where", ["--workdir", "--data", "--name", "--model.layers", "--layout", "--image", "--zone"])
def test_no_line_break_gets_into_a_launch_file(where, character, monkeypatch, capsys):
    """Whatever option it comes by and whoever starts the job: the line behind it would be run by the first host."""
    hostile = f"a{character}touch PWNED"
    options = {
        "--workdir": "gs://bucket/runs/mine",
        "--image": "i",
        "--zone": "z",
        "--topology": "v4:2x2x2",
        "--layout": "fully_sharded:2x4",
    } | {where: hostile}
    for engine in ("slurm", "gke", "tpu-vm"):
        if (engine, where) in {("slurm", "--image"), ("slurm", "--zone"), ("gke", "--zone"), ("tpu-vm", "--image")}:
            continue  # not read
        given = options | ({"--workdir": options["--workdir"].replace("gs://", "/")} if engine == "slurm" else {})
        arguments = [text for option in given.items() for text in option]
        monkeypatch.setattr(sys, "argv", ["launch", "gpt.quickstart", "--on", engine, *arguments, "--dry-run"])
        with pytest.raises(UserError) as caught:
            launch.main()
        assert len(str(caught.value).splitlines()) == 1
        assert where in ("--model.layers", "--layout") or "has a control character" in str(caught.value)
    assert not capsys.readouterr().out


def test_a_job_has_no_line_break_whatever_made_it():
    """The rule is the job's own, not the command's."""
    e = registry.load("gpt.quickstart")
    for changed in ({"name": "a\nb"}, {"layout": dataclasses.replace(e.layout, name="a\nb")}):
        with pytest.raises(ConfigError, match=r"'a\\nb' has a control character"):
            job.Job(dataclasses.replace(e, **changed), (), job.machines_of("v4:2x2x2"), "/w", "", 3)
