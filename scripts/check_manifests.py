#!/usr/bin/env python3
"""Checks the manifests in deploy/kubernetes: against the schemas of Kubernetes, which kubernetes-validate has, and
against each other. Prints each mistake; exit code 1 if there are any. scripts/check_deploy.sh runs it."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import yaml

FOLDER = Path(__file__).resolve().parent.parent / "deploy" / "kubernetes"
# The oldest version whose schemas kubernetes-validate has, and its newest
VERSIONS = ["1.25", kubernetes_validate.latest_version()]


def documents(text):
    """Returns the objects of a YAML stream."""
    return [document for document in yaml.safe_load_all(text) if document]


def check_schemas(objects):
    """Yields a line for each object that a schema refuses, unknown keys included."""
    for source, thing in objects:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(thing, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                where = ".".join(str(step) for step in error.path)
                yield f"{source}: {thing['kind']} {where}: {error.message} (Kubernetes {version})"


def check_resources(container, offered):
    """Yields a line for each resource that keeps the pod from having CPUs, huge pages and devices of its own."""
    limits = container["resources"]["limits"]
    if container["resources"]["requests"] != limits:
        yield "requests differ from limits: the pod is not Guaranteed"
    if not re.fullmatch("[0-9]+", str(limits["cpu"])):
        yield f"cpu is {limits['cpu']}: the CPU manager gives exclusive CPUs for whole numbers only"
    devices = {name for name in limits if "/" in name}
    if devices != offered:
        yield f"the pod requests {sorted(devices)}, and sriov-device-plugin.yaml offers {sorted(offered)}"
    for name in devices:
        if str(limits[name]) != "1":
            yield f"{name} is not 1: start.sh takes one address for each resource"


def check_configuration(configuration, container, offered):
    """Yields a line for each value of rack.toml that does not fit the pod."""
    limits = container["resources"]["limits"]
    runtime = configuration["runtime"]
    variables = {"$PCIDEVICE_" + re.sub("[./]", "_", name).upper() for name in offered}
    used = {port["pci"] for port in configuration["port"]}
    if used != variables:
        yield f"rack.toml names {sorted(used)}, and the device plugin sets {sorted(variables)}"
    if len(runtime["workers"]) >= int(limits["cpu"]):
        yield "the workers leave no CPU for the control thread"
    pages = re.fullmatch("([0-9]+)([MG])i", limits["hugepages-2Mi"])
    megabytes = int(pages[1]) * (1024 if pages[2] == "G" else 1)
    if megabytes < runtime["memory_mb"]:
        yield f"memory_mb is {runtime['memory_mb']}, and the pod has {megabytes} MB of huge pages"
    port = int(configuration["observe"]["prometheus"].rsplit(":", 1)[1])
    if port not in [entry["containerPort"] for entry in container["ports"]]:
        yield f"rack.toml serves metrics at port {port}, which is not a containerPort"


def check_together(files):
    """Yields a line for each name in a manifest that another one does not define."""
    kustomization = files["kustomization.yaml"][0]
    listed = set(kustomization["resources"]) | {"kustomization.yaml", "sriov-device-plugin.yaml"}
    if listed != set(files):
        yield f"kustomization.yaml lists other files than there are: {sorted(listed ^ set(files))}"
    plugin = json.loads(files["sriov-device-plugin.yaml"][0]["data"]["config.json"])
    offered = {f"{pool['resourcePrefix']}/{pool['resourceName']}" for pool in plugin["resourceList"]}
    daemon = files["daemonset.yaml"][0]["spec"]
    pod = daemon["template"]["spec"]
    (container,) = pod["containers"]
    yield from check_resources(container, offered)
    yield from check_configuration(tomllib.loads((FOLDER / "rack.toml").read_text()), container, offered)

    labels = daemon["template"]["metadata"]["labels"].items()
    service = files["service.yaml"][0]["spec"]
    for selector in [daemon["selector"]["matchLabels"], service["selector"]]:
        if not selector.items() <= labels:
            yield f"the selector {selector} does not match the pod's labels"
    ports = {port["name"] for port in container["ports"]}
    probes = {container[probe]["httpGet"]["port"] for probe in ["startupProbe", "readinessProbe", "livenessProbe"]}
    for port in probes | {port["targetPort"] for port in service["ports"]}:
        if port not in ports:
            yield f"the container has no port {port}"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        if mount["name"] not in volumes:
            yield f"the pod has no volume {mount['name']}"
    generated = {entry["name"]: entry["files"] for entry in kustomization["configMapGenerator"]}
    if generated.get(volumes["configuration"]["configMap"]["name"]) != ["rack.toml", "start.sh"]:
        yield "kustomization.yaml does not generate the pod's ConfigMap of rack.toml and start.sh"
    if files["namespace.yaml"][0]["metadata"]["name"] != kustomization["namespace"]:
        yield "namespace.yaml and kustomization.yaml name different namespaces"
    images = {image["name"] for image in kustomization["images"]}
    if container["image"].rpartition(":")[0] not in images:
        yield "kustomization.yaml does not name the container's image"


def main():
    files = {path.name: documents(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))}
    objects = [(name, thing) for name, things in files.items() for thing in things if thing["kind"] != "Kustomization"]
    # As `kubectl apply -k` sends them, where kubectl is installed
    mistakes = []
    if shutil.which("kubectl"):
        rendered = subprocess.run(["kubectl", "kustomize", FOLDER], capture_output=True, text=True)
        objects += [("kubectl kustomize", thing) for thing in documents(rendered.stdout)]
        if rendered.returncode:
            mistakes += rendered.stderr.splitlines()
    mistakes += [*check_schemas(objects), *check_together(files)]
    for mistake in mistakes:
        print(f"deploy/kubernetes: {mistake}", file=sys.stderr)
    if not mistakes:
        print(f"deploy/kubernetes: {len(objects)} objects fit the schemas of Kubernetes {' and '.join(VERSIONS)}")
    return bool(mistakes)


if __name__ == "__main__":
    sys.exit(main())
