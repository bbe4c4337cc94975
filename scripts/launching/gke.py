"""Starts a job on Google Kubernetes Engine: a JobSet with a Job for each TPU slice, of a pod for each host.

The image's working directory is the project's checkout after `make setup DEVICE=tpu`. Buckets are mounted by Cloud Storage FUSE.
"""

import subprocess
from typing import Any

from configs.registry import ConfigError
from scripts.launching.job import FINAL, GRACE, Job, plain

TOOL = "kubectl"

_ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
_CONTAINER = "train"
_REPLICATED = "slice"


def submit(job: Job, text: str) -> int:
    """Creates the JobSet; returns kubectl's exit code."""
    del job
    return subprocess.run([TOOL, "create", "-f", "-"], input=text, text=True, check=False).returncode


def script(job: Job, image: str, spot: bool) -> str:
    """Returns the manifest as YAML, with comments; raises ConfigError for machines without TPUs or a missing image."""
    import yaml

    comments = "".join(f"# {line}\n" for line in job.summary())
    return comments + yaml.safe_dump(manifest(job, image, spot), sort_keys=False, width=10_000)


def manifest(job: Job, image: str, spot: bool) -> dict[str, Any]:
    """Returns the JobSet. Its Jobs fail for good on a final exit code; any other failure starts all pods again."""
    pod = job.machines.slice
    if not pod:
        raise ConfigError(f"--topology {job.machines}: --on gke starts TPU slices, as v4:2x2x4")
    if not image:
        raise ConfigError("--on gke needs --image: the checkout after `make setup DEVICE=tpu`, in a registry of yours")
    chips, slices = {"google.com/tpu": str(pod.chips // job.machines.hosts)}, pod.slices
    volumes = [
        {
            "name": f"bucket-{at}",
            "csi": {
                "driver": "gcsfuse.csi.storage.gke.io",
                # A checkpoint appears by the rename of its folder.
                "volumeAttributes": {"bucketName": bucket, "mountOptions": "implicit-dirs,rename-dir-limit=200000"},
            },
        }
        for at, bucket in enumerate(job.buckets())
    ]
    container = {
        "name": _CONTAINER,
        "image": plain("--image", image),
        "command": ["bash", "-c", f"exec {job.train('.venv/bin/python')}"],
        "env": [*({"name": name, "value": value} for name, value in job.variables().items()), *_of_slices(job.name, slices)],
        "resources": {"requests": chips, "limits": chips},
        "volumeMounts": [{"name": f"bucket-{at}", "mountPath": f"/mnt/{bucket}"} for at, bucket in enumerate(job.buckets())],
    }
    pod = {
        "metadata": {"annotations": {"gke-gcsfuse/volumes": "true"}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": GRACE,
            "nodeSelector": {
                "cloud.google.com/gke-tpu-accelerator": _ACCELERATORS[pod.chip.name],
                "cloud.google.com/gke-tpu-topology": "x".join(map(str, pod.dims)),
                **({"cloud.google.com/gke-spot": "true"} if spot else {}),
            },
            "containers": [container],
            "volumes": volumes,
        },
    }
    final = {"containerName": _CONTAINER, "operator": "In", "values": [code for code in FINAL if code]}
    job_spec = {
        "parallelism": job.machines.hosts // slices,
        "completions": job.machines.hosts // slices,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": final}]},
        "template": pod,
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            # All pods of a Job on the nodes of one slice.
            "annotations": {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "failurePolicy": {
                "maxRestarts": job.restarts,
                "rules": [{"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [{"name": _REPLICATED, "replicas": slices, "template": {"spec": job_spec}}],
        },
    }


def _of_slices(name: str, slices: int) -> list[dict[str, Any]]:
    """Returns the variables by which the slices of a job meet; JAX and libtpu read them. A single slice has none."""
    if slices == 1:
        return []
    number = {"fieldRef": {"fieldPath": "metadata.annotations['jobset.sigs.k8s.io/job-index']"}}
    return [
        {"name": "MEGASCALE_COORDINATOR_ADDRESS", "value": f"{name}-{_REPLICATED}-0-0.{name}"},  # the first pod of the first Job
        {"name": "MEGASCALE_NUM_SLICES", "value": str(slices)},
        {"name": "MEGASCALE_SLICE_ID", "valueFrom": number},
    ]
