"""Plan a training before you pay for it. NAME is a description; --tokens or --compute gives the amount of training.

Compare the compute with Chinchilla's and Kaplan's laws, predict the loss of a language model with them, show the memory
and traffic of each device for several layouts, choose the simplest layout that fits, and give its time and cost. With
--out, also write the run.json and show the command that starts it. Without NAME, show the best sizes for --compute.

Memory is counted as for `anyformer train`: fp32 weights, gradients and two moments, products in bf16, no dropout."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli import Mistake
from anyformer.cli.count import check_exists, find_model, length_of
from anyformer.cli.settings import setting
from anyformer.cli.texts import as_json

if TYPE_CHECKING:
    from anyformer.planning.layout import DeviceLayout, Need, TrainingJob
    from anyformer.train.device_specs import Accelerator

NEED_NAME = ("set", "tokens", "corpus", "length", "batch", "price", "layout", "recipe", "out")


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", metavar="NAME", nargs="?", help="a name from `anyformer zoo`, a model folder, or a spec.json")
    add("--set", metavar="PATH=VALUE", action="append", default=[], help="set a value by its address; can be repeated")
    add("--tokens", type=float, metavar="D", help="training tokens (default: 20 per parameter)")
    add("--compute", type=float, metavar="FLOPS", help="compute to spend, instead of --tokens")
    add("--corpus", type=float, metavar="D", help="tokens in the corpus: how often each is seen")
    add("--length", type=int, metavar="N", help="tokens per text (default: the model's limit, at most 2048)")
    add("--batch", type=int, metavar="N", help="texts per step (default: about half a million tokens)")
    add("--micro", type=int, default=1, metavar="N", help="texts on a device at once (default: 1)")
    add("--on", metavar="KIND", default="H100", help="accelerator (default: H100); a wrong name lists them")
    add("--devices", type=int, default=8, metavar="N", help="number of accelerators (default: 8)")
    add("--flops", type=float, metavar="F", help="FLOPs per second of a device that has no name here")
    add("--memory", type=float, metavar="BYTES", help="memory of a device")
    add("--bandwidth", type=float, metavar="BYTES", help="memory bandwidth of a device, per second")
    add("--link", type=float, metavar="BYTES", help="bandwidth between devices, per second")
    add(
        "--utilisation",
        type=float,
        default=0.4,
        metavar="U",
        help="share of the FLOPs that is used, MFU (default: 0.4)",
    )
    add("--price", type=float, metavar="P", help="price of a device per hour")
    add("--layout", metavar="WAY", help="layout such as shard=4,tensor=2,recompute (default: the simplest that fits)")
    add("--recipe", metavar="NAME", help="recipe with the data and objective (default: gpt2-124m for decoders)")
    add("--out", metavar="FILE", help="write the run.json to this file")
    add("--json", action="store_true", help="print a JSON object")


def run(options: argparse.Namespace) -> None:
    check(options)
    if options.name is None:
        show_budget(options)
        return
    device = device_of(options)
    check_exists(options.name)

    from anyformer.cli.terminal import spinner

    with spinner(f"planning {options.name}"):
        from anyformer.counting import count
        from anyformer.models import position_limit
        from anyformer.planning.layout import TrainingJob, parse_layout
        from anyformer.specs.codec import override

        spec = override(find_model(options.name), dict(map(setting, options.set)))
        counted = count(spec)
        length = length_of(spec, options.length, min(position_limit(spec) or 2048, 2048))
        assert length is not None
        groups = options.devices * options.micro
        batch = options.batch or max(round(2**19 / length / groups), 1) * groups
        job = TrainingJob(counted, length, batch, options.micro)
        token = counted.training_flops(length, causal=True) / length
        tokens = options.tokens or (options.compute / token if options.compute else 20.0 * counted.parameters)
        steps = max(round(tokens / (job.batch * length)), 1)
        requested = parse_layout(options.layout, options.devices) if options.layout is not None else None
        if requested is not None:
            job.check(requested)
        needs, refused = layouts(job, options.devices, requested)
        chosen = job.need(requested) if requested is not None else job.smallest(options.devices, device)
        if chosen is None and not needs:
            raise ValueError(f"no layout of {options.devices} devices divides this: {next(iter(refused.values()))}")
    result = {
        "name": options.name,
        "parameters": counted.parameters,
        "active": counted.active,
        "tokens": tokens,
        "length": length,
        "batch": job.batch,
        "steps": steps,
        **compute(options, counted, tokens, token),
        "device": dataclasses.asdict(device),
        "devices": options.devices,
        "utilisation": options.utilisation,
        "layouts": [row(job, each, device, options.utilisation) for each in needs],
        "refused": refused,
        "chosen": None if chosen is None else cost_of(job, chosen, device, options, steps),
    }
    if options.out is not None:
        if chosen is None:
            raise ValueError(f"nothing is written to {options.out}: this fits no layout of up to 65,536 devices")
        write(options, job, chosen.way, steps, result)
    if options.json:
        print(as_json(result, indent=1))
        return
    reads = {name for part in spec.readers for name in dict(part.items())["embedding"].inputs}
    show(result, options, "texts" if "input_ids" in reads else "examples")


def check(options: argparse.Namespace) -> None:
    for name in (
        "tokens",
        "compute",
        "corpus",
        "length",
        "batch",
        "micro",
        "devices",
        "flops",
        "memory",
        "bandwidth",
        "link",
        "price",
    ):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"--{name} is {value:g}; it must be above 0")
    if options.name is None:
        given = [f"--{name}" for name, value in vars(options).items() if name in NEED_NAME and value]
        if options.compute is None or given:
            raise Mistake(f"give NAME{f' for {given[0]}' if given else ', or --compute to see the best sizes for it'}")
    if options.tokens is not None and options.compute is not None:
        raise ValueError("give --tokens or --compute, not both")
    if not 0 < options.utilisation <= 1:
        raise ValueError(f"--utilisation is {options.utilisation:g}; it must be above 0 and at most 1")
    if options.recipe is not None and options.out is None:
        raise ValueError("--recipe is for the run.json that --out FILE writes")


def device_of(options: argparse.Namespace) -> Any:
    from anyformer.train.device_specs import Accelerator, accelerator

    given = {name: getattr(options, name) for name in ("flops", "memory", "bandwidth", "link")}
    given = {name: value for name, value in given.items() if value is not None}
    if {"flops", "memory"} <= given.keys():
        return Accelerator("custom device", **{"bandwidth": 0.0, "link": 0.0, **given})
    return dataclasses.replace(accelerator(options.on), **given)


def compute(options: argparse.Namespace, counted: Any, tokens: float, token: float) -> dict[str, Any]:
    from anyformer.planning.compute import epochs, estimate

    spent = options.compute or token * tokens
    found: dict[str, Any] = {"optimal": optimal(spent)}
    if counted.spec.writes and not counted.spec.pair and not counted.spec.towers:  # the laws describe language models
        tables = sum(size for address, size in counted.parts.items() if address.startswith("embedding."))
        found["loss"] = losses(counted.active, counted.active - tables, tokens)
    seen = {} if options.corpus is None else {"epochs": epochs(tokens, options.corpus)}
    return {"compute": spent, "estimate": estimate(counted.active, tokens), **found, **seen}


def losses(parameters: float, without_embeddings: float, tokens: float) -> dict[str, float]:
    """Return the loss that each law predicts, in nats per token."""
    from anyformer.planning.compute import hoffmann_loss, kaplan_loss

    return {"Hoffmann": hoffmann_loss(parameters, tokens), "Kaplan": kaplan_loss(without_embeddings, tokens)}


def optimal(spent: float) -> list[dict[str, Any]]:
    """Return the best size and number of tokens for this compute, by each law."""
    from anyformer.planning.compute import LAWS

    found = [law(spent) for law in LAWS]
    return [
        {**dataclasses.asdict(each), "loss": losses(each.parameters, each.parameters, each.tokens)} for each in found
    ]


def show_budget(options: argparse.Namespace) -> None:
    if options.json:
        print(as_json({"compute": options.compute, "optimal": optimal(options.compute)}, indent=1))
        return
    print(f"{options.compute:.3g} FLOPs would train")
    show_laws(optimal(options.compute))


def show_laws(rows: list[dict[str, Any]]) -> None:
    from anyformer.cli.terminal import short_number, table

    names = {name: None for row in rows for name in row.get("loss", {})}
    table(
        ("by", "parameters", "tokens", *(f"loss by {name}" for name in names)),
        [
            (row["law"], short_number(row["parameters"]), short_number(row["tokens"]))
            + tuple(f"{row['loss'][name]:.2f}" for name in names)
            for row in rows
        ],
        right=range(1, 3 + len(names)),
    )


def layouts(job: TrainingJob, devices: int, requested: DeviceLayout | None) -> tuple[list[Need], dict[str, str]]:
    """Return the needs of the usual layouts and of the requested one; and why other layouts are impossible."""
    fitting, refused = {}, {}
    for way in (*job.usual(devices), *([] if requested is None else [requested])):
        try:
            for each in (way, dataclasses.replace(way, recompute=True)):
                fitting[each] = job.need(each)
        except ValueError as error:
            refused[str(way)] = str(error)
    return list(fitting.values()), refused


def row(job: TrainingJob, need: Need, device: Accelerator, utilisation: float) -> dict[str, Any]:
    """Return one layout in the form of the JSON output."""
    return {
        "layout": str(need.way),
        **dataclasses.asdict(need),
        "total": need.total,
        "fits": need.fits(device),
        "seconds": job.seconds(need.way, device, utilisation),
        "sending": 2 * need.sent / device.link if device.link else None,  # a link counts both directions
    }


def cost_of(
    job: TrainingJob, need: Need, device: Accelerator, options: argparse.Namespace, steps: int
) -> dict[str, Any]:
    costs = row(job, need, device, options.utilisation)
    hours = costs["seconds"] * steps / 3600
    device_hours = hours * need.way.devices
    cost = None if options.price is None else device_hours * options.price
    return {**costs, "devices": need.way.devices, "hours": hours, "device_hours": device_hours, "cost": cost}


def write(options: argparse.Namespace, job: TrainingJob, way: DeviceLayout, steps: int, result: dict[str, Any]) -> None:
    from anyformer.planning import command, run_of
    from anyformer.recipes import recipe
    from anyformer.specs.codec import to_json

    name = options.recipe
    if name is None:
        if job.spec.pair or not job.spec.writes:
            raise ValueError("--out: give --recipe NAME, whose data and objective this model is trained on")
        name = "gpt2-124m"
    out = Path(options.out)
    described = run_of(recipe(name), out.stem if out.stem != "run" else Path(options.name).stem, job, way, steps)
    out.write_text(to_json(described) + "\n", "utf-8")
    result["command"] = command(way, out)


def show(result: dict[str, Any], options: argparse.Namespace, kind: str) -> None:
    from anyformer.cli.terminal import bytes_of, table

    size, tokens, spent = result["parameters"], result["tokens"], result["compute"]
    print(
        f"{options.name}: {size:,} parameters, {tokens:.3g} tokens ({tokens / size:.3g} per parameter),"
        f" {result['steps']:,} steps of {result['batch']:,} {kind} of {result['length']:,} tokens"
    )
    if "epochs" in result:
        print(f"each of {options.corpus:.3g} tokens is seen {result['epochs']:.3g} times")
    print(f"{spent:.3g} FLOPs, including attention (6 N D: {result['estimate']:.3g}); they would also train")
    laws = result["optimal"]
    if "loss" in result:
        this = {"law": "this plan", "parameters": result["active"], "tokens": tokens, "loss": result["loss"]}
        laws = [this, *laws]
    else:  # not a language model
        laws = [{name: value for name, value in law.items() if name != "loss"} for law in laws]
    show_laws(laws)
    device = result["device"]
    print(
        f"\n{result['devices']:,} x {device['name']}: {device['flops'] / 1e12:,.0f} TFLOP/s"
        f" ({options.utilisation:.0%} used), {bytes_of(device['memory'])} (90% used)"
    )
    names = ("weights", "gradients", "optimizer", "activations", "buffers", "total", "sent")
    rows = [
        (
            each["layout"],
            *(bytes_of(round(each[name])) for name in names),
            f"{each['seconds']:.3g} s",
            "" if each["sending"] is None else f"{each['sending']:.2g} s",
            "yes" if each["fits"] else "no",
        )
        for each in result["layouts"]
    ]
    table(("layout, per device", *names, "step", "sending", "fits"), rows, right=range(1, 10))
    for way, why in result["refused"].items():
        print(f"{way}: {why}")
    chosen = result["chosen"]
    if chosen is None:
        print("\nit fits no layout of up to 65,536 devices: try --micro 1, a shorter --length or a larger --batch")
        return
    what = "as requested" if options.layout else "the simplest that fits"
    if chosen["devices"] > result["devices"]:
        what = f"it does not fit {result['devices']} devices; the smallest layout that fits"
    print(f"\n{what}: {chosen['devices']:,} devices, {chosen['layout']}, {bytes_of(round(chosen['total']))} each")
    if not chosen["fits"]:
        print("it does not fit")
    cost = "" if chosen["cost"] is None else f", {chosen['cost']:,.0f} at {options.price:g} per hour"
    print(f"{duration(chosen['hours'])}, {chosen['device_hours']:,.0f} device hours{cost}")
    if "command" in result:
        print(f"written: {options.out}\n{result['command']}")


def duration(hours: float) -> str:
    for size, unit in ((24 * 365.25, "years"), (24, "days"), (1, "hours"), (1 / 60, "minutes")):
        if hours >= 2 * size:
            return f"{hours / size:,.3g} {unit}"
    return f"{hours * 3600:,.3g} seconds"
