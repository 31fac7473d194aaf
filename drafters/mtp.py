"""Native multi-token prediction: one decoder layer behind a projection of the next token's embedding and the target's state.

    z = eh_proj [enorm(E x_{i+1}); hnorm(h_i)]       h_i the target's state after its final norm, or before it (option)
    o = layer(z)                                     an ordinary decoder layer with keys and values of its own
    n = shared_head.norm(o);  token = argmax head(n)
    h = n, or o (option)                             recycled to the next pass

The published families differ in tensor names, in the order of the concatenation (MiMo: state first), in the scale of their
norms (Qwen: 1 + w) and in what is fed and recycled; `drafters.mtp_names` has the names. Embedding and head are the target's.
Inside this project a module has DeepSeek's names, and so has a folder that training writes.

Options: `feature` and `recycle`, each `post_norm` or `pre_norm`; `zero_first_embedding`, whether the row at position 0 reads
zeros for its token; `modules`, how many of the checkpoint's modules to use: 1 is recycled, D draft one token each.

Shape legend, leading dimensions free: H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from drafters.cascade import Cascade
from drafters.chain import Chain, SerialPasses
from drafters.contract import Draft, Tap, Target
from drafters.decoder_layer import Attend, Attention, Keep, LayerConfig, Mlp, Rotation, every_row
from drafters.drafter_checkpoint import DrafterWeights, check_fits, check_options, load_into, read_drafter_config
from drafters.mtp_names import MtpNames, find_names, left_alone
from drafters.packing import pack

_STATES = ("post_norm", "pre_norm")
_OPTIONS = {"feature": _STATES, "recycle": _STATES, "zero_first_embedding": (True, False), "modules": None}


class SharedHead(nn.Module):
    """The norm before the target's head."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.hidden, eps=config.eps)


class MtpNetwork(nn.Module):
    """One module. Its state dict has DeepSeek's names, without a prefix. A `chain.ChainNetwork`."""

    def __init__(self, config: LayerConfig, recycle_normed: bool, head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.config, self.recycle_normed = config, recycle_normed
        # Behind a function, because it may be a module, and is the target's: not this network's to save or to pack.
        self.head: Callable[[Tensor], Tensor] = lambda state_H: head(state_H)
        self.enorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.hnorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.eh_proj = nn.Linear(2 * config.hidden, config.hidden, bias=False)
        self.input_layernorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden, eps=config.eps)
        self.mlp = Mlp(config)
        self.shared_head = SharedHead(config)

    def fuse(self, hidden_H: Tensor) -> Tensor:
        """The tapped state is the feature."""
        return hidden_H

    def step(self, embedded_H: Tensor, feature_H: Tensor, rotation: Rotation, attend: Attend, keep: Keep = every_row) -> Tensor:
        z_H = self.eh_proj(torch.cat((self.enorm(embedded_H), self.hnorm(feature_H)), dim=-1))
        z_H = keep(z_H) + self.self_attn(self.input_layernorm(z_H), rotation, attend, keep)
        out: Tensor = z_H + self.mlp(self.post_attention_layernorm(z_H))
        return out

    def read(self, output_H: Tensor) -> tuple[Tensor, Tensor]:
        state_H: Tensor = self.shared_head.norm(output_H)
        return state_H, state_H if self.recycle_normed else output_H

    def logits(self, state_H: Tensor) -> Tensor:
        logits_V: Tensor = self.head(state_H)
        return logits_V

    def best(self, state_H: Tensor) -> Tensor:
        return self.logits(state_H).argmax(-1)


class MtpDrafter:
    """One module recycled, or a cascade of several. `checkpoint` is a folder of its own, or a target's that holds modules."""

    def __init__(self, target: Target, options: Mapping[str, object], checkpoint: str | None) -> None:
        self.check_options(options)
        if checkpoint is None:
            raise ValueError("checkpoint: MTP needs one; set checkpoint.location to its folder, or to the target's own")
        normed = options["recycle"] == "post_norm"
        networks = load_mtp(checkpoint, target, _count(options["modules"]), normed)
        self.networks = networks
        self.taps: tuple[Tap, ...] = ("final",) if options["feature"] == "post_norm" else (target.num_layers - 1,)
        self._weight_bytes = sum(pack(network) for network in networks)
        zero_first = bool(options["zero_first_embedding"])
        passes = SerialPasses(len(networks), networks[0].config, target.embedding, target, zero_first)
        self.chain: Chain | Cascade
        self.max_budget = len(networks) if len(networks) > 1 else None  # each module of a cascade drafts one token
        if len(networks) == 1:
            self.chain = Chain(networks[0], passes, target.slots)
        else:
            self.chain = Cascade(networks, passes, target.slots)

    @classmethod
    def check_options(cls, options: Mapping[str, object]) -> None:
        check_options(options, _OPTIONS, "MTP")
        _count(options["modules"])

    def observe(self, slots: Sequence[int], hidden_RTM: Tensor | None, tokens_RT: Tensor, counts: Sequence[int]) -> None:
        self.chain.observe(slots, hidden_RTM, tokens_RT, counts)

    def propose(self, slots: Sequence[int], budgets: Sequence[int]) -> Draft | None:
        return self.chain.propose(slots, budgets)

    def release(self, slot: int) -> None:
        self.chain.cache.release(slot)

    def memory(self) -> dict[str, int]:
        return {"weights": self._weight_bytes, "state": self.chain.bytes}


def load_mtp(checkpoint: str, target: Target, modules: int, recycle_normed: bool) -> list[MtpNetwork]:
    """The first `modules` modules of a checkpoint, filled and unpacked.

    Raises ValueError for whatever does not fit, naming the tensor, key or option.
    """
    weights = DrafterWeights(checkpoint, target.dtype, target.device)
    config = read_drafter_config(checkpoint)
    names = find_names(weights, config)
    if modules > len(names):
        raise ValueError(f"options.modules: {modules} asked for and {len(names)} in {checkpoint}; lower it")
    check_fits(config, target)
    networks = []
    for name in names[:modules]:
        layer = LayerConfig.read(config, weights, name.layer, target.hidden_size)
        with torch.device("meta"):
            network = MtpNetwork(layer, recycle_normed, target.head)
        load_into(network, weights, name.published)
        _normalise(network, name)
        networks.append(network)
    weights.finish(left_alone(weights, names[:modules], names[modules:]))
    return networks


@torch.no_grad()
def _normalise(network: MtpNetwork, name: MtpNames) -> None:
    """From a family's arithmetic to this module's: norms scale by w, and the embedding comes first."""
    if name.norms_add_one:
        for module in network.modules():
            if isinstance(module, nn.RMSNorm):
                module.weight.add_(1)
    if name.state_first:
        state, embedding = network.eh_proj.weight.chunk(2, dim=1)
        network.eh_proj.weight = nn.Parameter(torch.cat((embedding, state), dim=1), requires_grad=False)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"options.modules: {value!r} must be a whole number of at least 1")
    return value
