"""How a checkpoint's files name the tensors of a model, where they do it otherwise than its modules.

Files of a mixture of experts mostly hold each expert's matrices by themselves. Modules of transformers hold one tensor
for all experts of a layer, often with the matrices of two names side by side. transformers has a table of that, which
is followed as far as it renames, stacks and joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo.models.slices import own_part, own_rows


@dataclass(slots=True)
class Stack:
    """The tensors of files that are one tensor of a model: by name one for each expert, in order.

    Those of the first name come first along the second dimension.
    """

    experts: list[list[str]] = field(default_factory=list)  # [names][experts]

    def shape(self, sizes: Mapping[str, Sequence[int]]) -> tuple[int, ...] | None:
        """Return the shape of the whole, from those of its parts; None: they do not fit together."""
        each = [{tuple(sizes[name]) for name in names} for names in self.experts]
        if any(len(shapes) != 1 for shapes in each) or len({len(names) for names in self.experts}) != 1:
            return None
        parts = [shapes.pop() for shapes in each]
        if len({part[1:] for part in parts}) != 1:
            return None
        return (len(self.experts[0]), sum(part[0] for part in parts), *parts[0][1:])

    def read(self, tensor: Tensor, files: Mapping[str, Any]) -> None:
        """Read this rank's experts into its slice of ``tensor``, and no others.

        Args:
            tensor: of the model, whole or cut along the experts.
            files: by the name of each part the open file that holds it.
        """
        own = own_part(tensor)
        start, count = own_rows(tensor) if isinstance(tensor, DTensor) else (0, len(own))
        begin = 0  # of the present name along the second dimension
        for names in self.experts:
            for place, name in enumerate(names[start : start + count]):
                part = files[name].get_tensor(name)
                own[place, begin : begin + len(part)].copy_(part)
            begin += len(part) if count else 0


def stacks_of(model: Any, names: Iterable[str], known: Iterable[str]) -> dict[str, str | Stack] | None:
    """Return for each of a model's tensors what it is called in the files, or of which of their tensors it consists.

    Args:
        model: of transformers; its weights are not looked at.
        names: of the tensors in the files.
        known: names of the model's tensors.

    Returns:
        None: transformers' table says more than that, or this version of it is not understood.
    """
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import (
            Concatenate,
            MergeModulelist,
            WeightConverter,
            WeightRenaming,
            dot_natural_key,
            rename_source_key,
        )
    except ImportError:  # its place is not promised
        return None
    entries = get_model_conversion_mapping(model)
    renamings = [entry for entry in entries if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in entries if isinstance(entry, WeightConverter)]
    if len(renamings) + len(converters) != len(entries):
        return None
    there = dict.fromkeys(known)
    found: dict[str, str | Stack] = {}
    parts: dict[str, dict[str, list[str]]] = {}
    for name in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, there)
        if pattern is None:
            found[target] = name
        else:
            parts.setdefault(target, {}).setdefault(pattern, []).append(name)
    for target, by_pattern in parts.items():
        converter = next(entry for entry in converters if set(by_pattern) <= set(entry.source_patterns))
        stacked = [type(one) for one in converter.operations] in ([MergeModulelist], [MergeModulelist, Concatenate])
        if not stacked or [one.dim for one in converter.operations] not in ([0], [0, 1]):
            return None
        found[target] = Stack([by_pattern[p] for p in converter.source_patterns if p in by_pattern])
    return found
