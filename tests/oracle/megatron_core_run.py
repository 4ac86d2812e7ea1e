"""Trains a tiny model with megatron-core on the CPU and saves it as Megatron-LM does: `python megatron_core_run.py SPEC.json`.

The spec has model, samples (rows of tokens), saves {folder: format}, layout (tp, pp, vp, ep, etp, world). Three steps, a save
in each format, five more steps, a save; losses go to the folder's losses.json. With "load", a folder of torch_dist, the first
three steps are those that it had; with "resave" too, there are no more steps: only the saves, in another layout. A bert or
t5 learns from no labels, only so that its states are something; instead of losses it leaves the outputs of PROBE.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import sys
import traceback
import warnings

warnings.simplefilter("ignore")
import torch
from torch.overrides import TorchFunctionMode

# Without padding: rows that Megatron adds take part in its softmax, and ours are not there.
VOCABULARY, SEQUENCE, BATCH, BEFORE, AFTER, LR = 132, 24, 4, 3, 5, 2e-3
SIZES = dict(hidden_size=32, num_attention_heads=4, ffn_hidden_size=48)
LAYERS = {"mixtral": 4, "gpt_deep": 4, "t5": 3}
PROBE = [5, 17, 130, 4, 42, 99, 2, 64, 7, 7, 88, 31]


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


class Layout:
    """Sizes of the groups, as Megatron-LM's options name them."""

    def __init__(self, tp=1, pp=1, vp=None, ep=1, etp=None, world=None, **options):
        self.tp, self.pp, self.vp, self.ep, self.etp, self.options = tp, pp, vp, ep, etp or tp, options
        self.world = world or tp * pp

    def sizes(self):
        return dict(
            tensor_model_parallel_size=self.tp, pipeline_model_parallel_size=self.pp, virtual_pipeline_model_parallel_size=self.vp,
            expert_model_parallel_size=self.ep, expert_tensor_parallel_size=self.etp,
        )  # fmt: skip


def arguments(name, layout):
    """As pretrain_gpt.py's parser names them."""
    given = argparse.Namespace(**SIZES, seq_length=SEQUENCE, max_position_embeddings=SEQUENCE, padded_vocab_size=VOCABULARY)
    given.network, given.num_layers = name, LAYERS.get(name, 2)
    for key, value in {**layout.sizes(), **layout.options}.items():
        setattr(given, key, value)
    given.world_size, given.data_parallel_size = layout.world, layout.world // (layout.tp * layout.pp)
    given.lr, given.min_lr, given.adam_beta1, given.adam_beta2, given.weight_decay = LR, 0.0, 0.9, 0.95, 0.1
    given.group_query_attention, given.num_query_groups, given.num_experts = False, 1, None
    given.params_dtype, given.transformer_impl = torch.float32, "local"
    given.norm_epsilon, given.vocab_size = 1e-5, VOCABULARY
    given.bert_binary_head, given.decoder_num_layers = True, given.num_layers if name == "t5" else None
    if name.startswith(("gpt", "bert", "t5")):
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


def make_network(name, config):
    """A BERT or a T5."""
    from megatron.core.models.bert import bert_layer_specs, bert_model
    from megatron.core.models.T5 import t5_model, t5_spec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    common = dict(
        vocab_size=VOCABULARY, max_sequence_length=SEQUENCE, parallel_output=False, share_embeddings_and_output_weights=True
    )
    if name == "bert":
        return bert_model.BertModel(
            config=config, num_tokentypes=2, transformer_layer_spec=bert_layer_specs.bert_layer_local_spec, **common
        )
    specs = {
        f"transformer_{side}_layer_spec": TransformerBlockSubmodules([layer] * config.num_layers, layer_norm=t5_spec.LNImpl)
        for side, layer in (
            ("encoder", t5_spec.encoder_model_with_local_spec()), ("decoder", t5_spec.decoder_model_with_local_spec())
        )
    }  # fmt: skip
    return t5_model.T5Model(config=config, encoder_config=config, **specs, **common)


def outputs_of(model, name, rows):
    """A BERT's logits of tokens and of pairs, or a T5's of what it writes after the rows' first half, both being the rows."""
    if name == "bert":
        types = (torch.arange(rows.shape[1]) >= rows.shape[1] // 2).long().expand(rows.shape)
        return model(rows, torch.ones(rows.shape), tokentype_ids=types)
    count, length = rows.shape
    seen = torch.zeros(count, 1, length, length, dtype=torch.bool)  # true is what is masked
    return [model(rows, rows, seen, torch.ones(1, 1, length, length).triu(1).bool().expand(count, -1, -1, -1), seen)]


def make_model(given, layout, pp_rank=0, vp_stage=None):
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.transformer_config import TransformerConfig

    experts = {}
    if given.num_experts:
        experts = dict(num_moe_experts=4, moe_router_topk=2, moe_router_load_balancing_type="none", moe_ffn_hidden_size=48)
    config = TransformerConfig(
        **SIZES,
        **experts,
        **layout.sizes(),
        num_layers=given.num_layers,
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
        pipeline_dtype=torch.float32,
    )
    if given.network in ("bert", "t5"):
        return config, make_network(given.network, config)
    spec = get_gpt_layer_local_spec(num_experts=given.num_experts, normalization=given.normalization)
    return config, GPTModel(
        config,
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        position_embedding_type=given.position_embedding_type,
        share_embeddings_and_output_weights=not given.untie_embeddings_and_output_weights,
        pre_process=pp_rank == 0 and not vp_stage,
        post_process=pp_rank == layout.pp - 1 and (vp_stage is None or vp_stage == layout.vp - 1),
        vp_stage=vp_stage,
    )


def main(spec, rank):
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.transformer.moe import moe_utils

    torch.set_num_threads(1)
    name, layout = spec["model"], Layout(**spec["layout"])
    store = torch.distributed.FileStore(spec["store"], layout.world)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=layout.world)
    parallel_state.initialize_model_parallel(
        layout.tp, layout.pp, layout.vp, expert_model_parallel_size=layout.ep, expert_tensor_parallel_size=layout.etp
    )
    pretend_gpu()
    tensor_parallel.get_cuda_rng_tracker().fork = lambda *_: contextlib.nullcontext()
    moe_utils.te_general_gemm = None  # is asked for although Transformer Engine is not there
    given = arguments(name, layout)
    torch.manual_seed(5)
    pp_rank = parallel_state.get_pipeline_model_parallel_rank()
    made = [make_model(given, layout, pp_rank, stage) for stage in (range(layout.vp) if layout.vp else [None])]
    config, models = made[0][0], [model for _, model in made]
    for model in models:
        for i, (key, parameter) in enumerate(model.named_parameters()):
            if parameter.dim() == 1:  # norms and biases that are not all alike
                with torch.no_grad():
                    parameter.add_(torch.linspace(-0.1, 0.1, parameter.numel()) * (1 + i % 3))
    distributed = spec["distributed"]
    overlap = layout.options.get("overlap_grad_reduce", False)
    settings = DistributedDataParallelConfig(
        use_distributed_optimizer=distributed, overlap_grad_reduce=overlap, bucket_size=layout.options.get("ddp_bucket_size")
    )
    wrapped = [DistributedDataParallel(config, settings, model, disable_bucketing=i > 0) for i, model in enumerate(models)]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=LR, weight_decay=0.1, adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, clip_grad=1.0,
            use_distributed_optimizer=distributed, params_dtype=torch.float32,
        ),
        wrapped,
    )  # fmt: skip
    for group in optimizer.param_groups:  # as OptimizerParamScheduler does at each step
        group["weight_decay"] *= group["wd_mult"]
    samples, losses = torch.tensor(spec["samples"]), []

    def step(number):
        (model,) = wrapped
        rows = samples[number * BATCH : (number + 1) * BATCH]
        model.zero_grad_buffer()
        optimizer.zero_grad()
        positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
        if name in ("bert", "t5"):
            loss = sum(output.float().square().mean() for output in outputs_of(model, name, rows[:, :-1]))
        else:
            loss = model(rows[:, :-1], positions, None, labels=rows[:, 1:]).float().mean()
        loss.backward()
        model.finish_grad_sync()
        optimizer.step()
        losses.append(loss.item())

    def model_states(state_of):
        if layout.vp is None:
            return {"model": state_of(models[0])}
        return {f"model{i}": state_of(model) for i, model in enumerate(models)}

    def save(folder, form):
        iteration = len(losses)
        target = pathlib.Path(folder) / f"iter_{iteration:07d}"
        given.consumed_train_samples, given.iteration = iteration * BATCH, iteration
        state = {"args": given, "checkpoint_version": 3.0, "iteration": iteration, "num_floating_point_operations_so_far": 0.0}
        state["opt_param_scheduler"] = {"max_lr": LR, "num_steps": iteration * BATCH, "lr_decay_style": "constant"}
        if form == "legacy":
            numbers = [f"{parallel_state.get_tensor_model_parallel_rank():02d}"]
            numbers += [f"{pp_rank:03d}"] * (layout.pp > 1)
            numbers += [f"{parallel_state.get_expert_model_parallel_rank():03d}"] * (layout.ep > 1)
            target = target / ("mp_rank_" + "_".join(numbers))
            target.mkdir(parents=True, exist_ok=True)
            state.update(model_states(lambda model: model.state_dict_for_save_checkpoint()))
            state["optimizer"] = optimizer.state_dict()
            if parallel_state.get_expert_data_parallel_rank() == 0:
                torch.save(state, target / "model_optim_rng.pt")
            if distributed:
                optimizer.save_parameter_state(str(target / "distrib_optim.pt"))
        else:
            target.mkdir(parents=True, exist_ok=True)
            metadata = {"distrib_optim_sharding_type": form, "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
            state.update(model_states(lambda model: model.sharded_state_dict(metadata=metadata)))
            if form != "no_optimizer":
                state["optimizer"] = optimizer.sharded_state_dict(state, metadata=metadata)
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
        DistributedOptimizer._set_main_param_and_optimizer_states = load_state
        metadata = dist_checkpointing.load_content_metadata(folder)
        resaved = spec.get("resave", False)
        if resaved:
            for part in optimizer.chained_optimizers:
                part._init_optimizer_states_with_dummy_values()
        else:
            step(AFTER)
            losses.clear()
        state = model_states(lambda model: model.sharded_state_dict(metadata=metadata))
        if resaved:  # its optimizer for experts over ranks is not that of the file
            parts = optimizer.chained_optimizers
            whole = [part.sharded_state_dict(state, is_loading=True, metadata=metadata) for part in parts]
            state["optimizer"] = {i: {"param_state": one["param_state"]} for i, one in enumerate(whole)}
        else:
            state["optimizer"] = optimizer.sharded_state_dict(state, is_loading=True, metadata=metadata)
        found = dist_checkpointing.load(state, folder)
        for key, model in model_states(lambda model: model).items():
            model.load_state_dict(found[key])
        if not resaved:
            optimizer.load_state_dict(found["optimizer"])
        for i, part in enumerate(optimizer.chained_optimizers if resaved else []):
            part.load_parameter_state_from_fully_reshardable(found["optimizer"][i]["param_state"])
            for states in part.optimizer.state.values():
                states["step"].fill_(BEFORE)
        for group in optimizer.param_groups:
            group.pop("step", None)  # Apex counts there, PyTorch's AdamW in the states
        losses.extend([0.0] * found["iteration"])

    if "load" in spec:
        load(spec["load"])
    for number in range(len(losses), BEFORE):
        step(number)
    for folder, form in spec["saves"].items():
        save(folder, form)
    if spec.get("resave"):
        return
    if name in ("bert", "t5"):
        with torch.no_grad():
            outputs = [output.tolist() for output in outputs_of(models[0].eval(), name, torch.tensor([PROBE]))]
        if rank == 0:
            pathlib.Path(spec["losses"]).write_text(json.dumps(outputs))
        return
    for number in range(BEFORE, BEFORE + AFTER):
        step(number)
    save(spec["later"], spec["later_form"])
    if rank == 0:
        pathlib.Path(spec["losses"]).write_text(json.dumps(losses))


def run_rank(spec, rank):
    code = 1
    try:
        with OnCpu():
            main(spec, rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    for helper in multiprocessing.active_children():  # the writer's, which would wait for ever
        helper.terminate()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    import megatron.core.models.gpt.gpt_model  # noqa: F401: once for all ranks
    import megatron.core.optimizer  # noqa: F401

    given = json.loads(pathlib.Path(sys.argv[1]).read_text())
    ranks = []
    for number in range(Layout(**given["layout"]).world):
        child = os.fork()
        if child == 0:
            run_rank(given, number)
        ranks.append(child)
    codes = [os.waitpid(child, 0)[1] for child in ranks]
    sys.exit(int(any(codes)))
