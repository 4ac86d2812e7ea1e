"""Trains a tiny model with megatron-core on the CPU and saves it as Megatron-LM does: `python megatron_core_run.py SPEC.json`.

The spec has model, samples (rows of tokens), saves {folder: format}, steps, world and rank. Three steps, a save in each
format, two more steps, a save; losses go to the folder's losses.json. With "load", a folder of torch_dist, the first three
steps are those that it had.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import sys
import warnings

warnings.simplefilter("ignore")
import torch
from torch.overrides import TorchFunctionMode

# Without padding: rows that Megatron adds take part in its softmax, and ours are not there.
VOCABULARY, SEQUENCE, BATCH, BEFORE, AFTER, LR = 132, 24, 4, 3, 2, 2e-3
SIZES = dict(num_layers=2, hidden_size=32, num_attention_heads=4, ffn_hidden_size=48)


class OnCpu(TorchFunctionMode):
    """What asks for a GPU in megatron-core gets the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device", "")):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def pretend_gpu():
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    type_of = torch.Tensor.type

    def cuda_type(self, *args, **kwargs):
        name = type_of(self, *args, **kwargs)
        return name.replace("torch.", "torch.cuda.") if isinstance(name, str) and "cuda" not in name else name

    torch.Tensor.type = cuda_type


def arguments(name, tp):
    """As pretrain_gpt.py's parser names them."""
    given = argparse.Namespace(**SIZES, seq_length=SEQUENCE, max_position_embeddings=SEQUENCE, padded_vocab_size=VOCABULARY)
    given.tensor_model_parallel_size, given.pipeline_model_parallel_size = tp, 1
    given.lr, given.min_lr, given.adam_beta1, given.adam_beta2, given.weight_decay = LR, 0.0, 0.9, 0.95, 0.1
    given.group_query_attention, given.num_query_groups, given.num_experts = False, 1, None
    given.params_dtype = torch.float32
    given.norm_epsilon, given.vocab_size = 1e-5, VOCABULARY
    if name == "gpt":
        given.position_embedding_type, given.normalization, given.add_bias_linear = "learned_absolute", "LayerNorm", True
        given.untie_embeddings_and_output_weights, given.swiglu = False, False
    else:
        given.position_embedding_type, given.normalization, given.add_bias_linear = "rope", "RMSNorm", False
        given.untie_embeddings_and_output_weights, given.swiglu = True, True
        given.group_query_attention, given.num_query_groups, given.rotary_base = True, 2, 10000
    if name == "mixtral":
        given.num_experts, given.moe_router_topk, given.moe_aux_loss_coeff = 4, 2, 0.0
        given.moe_router_load_balancing_type, given.moe_ffn_hidden_size = "none", 48
    return given


def make_model(name, given, tp):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts = {}
    if given.num_experts:
        experts = dict(num_moe_experts=4, moe_router_topk=2, moe_router_load_balancing_type="none", moe_ffn_hidden_size=48)
    config = TransformerConfig(
        **SIZES,
        **experts,
        num_query_groups=given.num_query_groups if given.group_query_attention else None,
        gated_linear_unit=given.swiglu,
        activation_func=torch.nn.functional.silu if given.swiglu else torch.nn.functional.gelu,
        normalization=given.normalization,
        add_bias_linear=given.add_bias_linear,
        layernorm_epsilon=1e-5,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_activation_fusion=not given.swiglu,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        init_method_std=0.1,
        tensor_model_parallel_size=tp,
    )
    spec = get_gpt_layer_local_spec(num_experts=given.num_experts, normalization=given.normalization)
    return config, GPTModel(
        config,
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        position_embedding_type=given.position_embedding_type,
        share_embeddings_and_output_weights=not given.untie_embeddings_and_output_weights,
    )


def main(spec):
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    torch.set_num_threads(1)
    tp, name, rank = spec["world"], spec["model"], spec["rank"]
    store = torch.distributed.FileStore(spec["store"], tp)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=tp)
    parallel_state.initialize_model_parallel(tp)
    pretend_gpu()
    tensor_parallel.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
    from megatron.core.transformer.moe import moe_utils

    moe_utils.te_general_gemm = None  # is asked for although Transformer Engine is not there
    given = arguments(name, tp)
    torch.manual_seed(5)
    config, model = make_model(name, given, tp)
    for i, (key, parameter) in enumerate(model.named_parameters()):
        if parameter.dim() == 1:  # norms and biases that are not all alike
            with torch.no_grad():
                parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel()) * (1 + i % 3))
    distributed = spec["distributed"]
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=distributed), model)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=LR, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, clip_grad=1.0,
            use_distributed_optimizer=distributed, params_dtype=torch.float32,
        ),
        [wrapped],
    )  # fmt: skip
    for group in optimizer.param_groups:  # as OptimizerParamScheduler does at each step
        group["weight_decay"] *= group["wd_mult"]
    samples, losses = torch.tensor(spec["samples"]), []

    def step(number):
        rows = samples[number * BATCH : (number + 1) * BATCH]
        wrapped.zero_grad_buffer()
        optimizer.zero_grad()
        positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
        loss = wrapped(rows[:, :-1], positions, None, labels=rows[:, 1:]).float().mean()
        loss.backward()
        wrapped.finish_grad_sync()
        optimizer.step()
        losses.append(loss.item())

    def save(folder, form):
        iteration = len(losses)
        target = pathlib.Path(folder) / f"iter_{iteration:07d}"
        given.consumed_train_samples, given.iteration = iteration * BATCH, iteration
        state = {"args": given, "checkpoint_version": 3.0, "iteration": iteration, "num_floating_point_operations_so_far": 0.0}
        state["opt_param_scheduler"] = {"max_lr": LR, "num_steps": iteration * BATCH, "lr_decay_style": "constant"}
        if form == "legacy":
            target = target / f"mp_rank_{rank:02d}"
            target.mkdir(parents=True)
            state["model"] = model.state_dict_for_save_checkpoint()
            state["optimizer"] = optimizer.state_dict()
            torch.save(state, target / "model_optim_rng.pt")
            if distributed:
                optimizer.save_parameter_state(str(target / "distrib_optim.pt"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            metadata = {"distrib_optim_sharding_type": form, "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
            state["model"] = model.sharded_state_dict(metadata=metadata)
            state["optimizer"] = optimizer.sharded_state_dict(state["model"], metadata=metadata)
            state["content_metadata"] = metadata
            dist_checkpointing.save(state, str(target))
        torch.distributed.barrier()
        if rank == 0:
            (pathlib.Path(folder) / "latest_checkpointed_iteration.txt").write_text(str(iteration))

    def load_state(self, parameter, tensors, load=DistributedOptimizer._set_main_param_and_optimizer_states):
        """Without Apex, megatron-core forgets that PyTorch's AdamW counts among its states, for each parameter."""
        group, place = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][place]]
        state["step"] = state["step"].clone()
        load(self, parameter, {**tensors, "step": state["step"]})

    def load(folder):
        """As Megatron-LM's load_checkpoint() does, over the state of a step: without Apex there must be one."""
        step(AFTER)
        losses.clear()
        DistributedOptimizer._set_main_param_and_optimizer_states = load_state
        metadata = dist_checkpointing.load_content_metadata(folder)
        state = {"model": model.sharded_state_dict(metadata=metadata)}
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=True, metadata=metadata)
        found = dist_checkpointing.load(state, folder)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        for group in optimizer.param_groups:
            group.pop("step", None)  # Apex counts there, PyTorch's AdamW in the states
        losses.extend([0.0] * found["iteration"])

    if "load" in spec:
        load(spec["load"])
    for number in range(len(losses), BEFORE):
        step(number)
    for folder, form in spec["saves"].items():
        save(folder, form)
    for number in range(BEFORE, BEFORE + AFTER):
        step(number)
    save(spec["later"], spec["later_form"])
    if rank == 0:
        pathlib.Path(spec["losses"]).write_text(json.dumps(losses))


if __name__ == "__main__":
    with OnCpu():
        main(json.loads(pathlib.Path(sys.argv[1]).read_text()))
        for helper in multiprocessing.active_children():  # the writer's, which would wait for ever
            helper.terminate()
        os._exit(0)
