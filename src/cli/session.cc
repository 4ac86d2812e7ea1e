#include "cli/session.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>

#include "cli/build_commit.h"
#include "config/environment.h"
#include "core/machine_error.h"
#include "core/time.h"
#include "device/deterministic.h"
#include "device/device.h"
#include "device/gpu_architecture.h"
#include "device/graph.h"
#include "device/host_sync.h"
#include "device/memory.h"
#include "device/threads.h"
#include "launch/last_words.h"
#include "launch/store_secret.h"
#include "ops/gpu/blas.h"
#include "train/step_check.h"
#include "verify/run_terms.h"

namespace megalith {
namespace {

// Time limit for a hanging run's last message: the reader of our output may have stopped too.
constexpr auto kLastWordsPatience = std::chrono::seconds(2);

// How long a rank refused before the meeting waits for the others.
constexpr double kEarlyPatience_s = 3;

// The main thread is stuck in a collective and cannot clean up.
[[noreturn]] void leave_hanging_run(Logger& log, const std::string& message) {
  std::promise<void> said;
  const auto is_said = said.get_future();
  std::thread([&] {
    log.error("{}", message);
    leave_error_file(environment_snapshot(), message);
    std::fflush(stdout);
    said.set_value();
  }).detach();
  is_said.wait_for(kLastWordsPatience);
  ::_exit(kExitFailure);
}

// Checks that the chip multiplies 8-bit numbers, and which products of this model its library does not support.
void check_fp8(const Resolved& resolved, const at::Device& device, const std::string& architecture, Logger& log) {
  const Config& config = resolved.config;
  if (!config.fp8.is_on() || config.fp8.is_microscaled()) return;
  check_fp8_products(architecture, *config.fp8.fp8_format);
  if (config.runtime.kernels == Kernels::kReference) return;
  const ParallelOptions& parallel = config.parallel;
  const Fp8Sizes sizes{
      .hidden = config.model.hidden_size,
      .ffn_of_rank = config.model.ffn_size() / parallel.tensor_model_parallel_size,
      .tokens = resolved.derived.micro_batch_size * resolved.derived.seq_length / parallel.context_parallel_size,
      .experts = config.model.expert_count()};
  for (const std::string& note : fp8_product_notes(config.fp8, ops::gpu::fp8_products_of(device), sizes)) {
    log.note("{}", note);
  }
}

void set_log_level(Logger& log, const LogOptions& options) {
  if (options.quiet) log.set_level(LogLevel::kWarning);
  if (options.verbose) log.set_level(LogLevel::kDebug);
}

// Ranks that differ end here; one of them reports the difference.
std::unique_ptr<C10dWorld> meet_ranks(CommandContext& context, const Resolved& resolved, const Launch& launch,
                                      const at::Device& device, bool outlives_ranks) {
  const ParallelOptions& parallel = resolved.config.parallel;
  const MeetingTerms terms = run_before_session(context, launch, [&] {
    const std::vector<std::pair<std::string, std::string>> program = {
        {"command", context.command}, {"version", std::string(kProgramVersion)}, {"commit", kBuildCommit}};
    return MeetingTerms{.terms = run_terms(resolved, device, program, environment_snapshot()),
                        .secret = store_secret(parallel)};
  });
  try {
    return std::make_unique<C10dWorld>(
        launch, device, parallel.distributed_timeout_minutes * 60, terms,
        [&log = context.log](const std::string& message) { leave_hanging_run(log, message); },
        LossTolerance{.is_on = outlives_ranks, .patience_s = resolved.config.train.faults.fault_patience_s});
  } catch (const DifferentTerms& error) {
    if (!error.is_speaker()) throw SilentExit{kExitUserError, error.what()};
    context.log.set_rank(/*rank=*/0, /*world_size=*/1);  // said for all ranks
    throw;
  }
}

// The store's secret, from a configuration that cannot be read as a whole.
std::string early_secret(const CommandContext& context) {
  ParallelOptions parallel;
  OptionSet options(parallel);
  try_resolve(options, context.config_inputs());
  return store_secret(parallel);
}

// A rank that cannot begin meets the others only to say so. Null if they do not come within seconds.
std::unique_ptr<C10dWorld> meet_to_leave(const CommandContext& context, const Launch& launch,
                                         std::string_view reason) {
  // A rank with an unreadable configuration does not know the others' back end, so no group is made.
  try {
    const at::Device device = accelerator_count() > 0 ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
    const MeetingTerms terms{.terms = {},
                             .secret = early_secret(context),
                             .no_begin = std::string(reason.substr(0, reason.find('\n')))};
    return std::make_unique<C10dWorld>(launch, device, kEarlyPatience_s, terms);
  } catch (const std::exception&) {
    return nullptr;
  }
}

// Checks that the program and the options fit the chip.
void check_device(const Resolved& resolved, const at::Device& device, Logger& log) {
  const bool wants_graphs = resolved.config.runtime.graphs.is_on();
  if (device.is_cpu() && wants_graphs) log.note("cuda_graphs does nothing on the CPU, where nothing is launched");
  if (device.is_cpu()) return;
  if (wants_graphs && !can_capture_graphs(device)) {
    throw UserError(fmt::format("cuda_graphs microbatch: this build cannot capture graphs on {}",
                                c10::DeviceTypeName(device.type(), /*lower_case=*/true)),
                    "leave cuda_graphs out, or take a build with CUDA's headers on an NVIDIA GPU");
  }
  const std::string architecture = architecture_of(device);
  if (check_architecture(architecture, built_architectures()) == ArchitectureFit::kByDriver) {
    log.note("the kernels were compiled for older GPUs than this one ({}): the driver compiles them at their first use",
             architecture);
  }
  check_fp8(resolved, device, architecture, log);
  if (resolved.config.runtime.device.fail_on_host_sync && !sees_waits_of_libtorch(device)) {
    log.note("fail_on_host_sync: this build of LibTorch does not tell of its own waits, so only others are seen");
  }
}

}  // namespace

std::string store_secret(const ParallelOptions& parallel) {
  return parallel.store_secret_file ? read_store_secret(*parallel.store_secret_file) : "";
}

int exit_code_of(const std::exception& error) {
  if (const auto* fault = dynamic_cast<const StepFault*>(&error)) return fault->exit_code();
  if (dynamic_cast<const MachineError*>(&error) != nullptr) return kExitFailure;
  return dynamic_cast<const UserError*>(&error) != nullptr ? kExitUserError : kExitFailure;
}

Launch join_launch(CommandContext& context) {
  const Launch launch = discover_launch(context.environment);
  context.log.set_rank(launch.rank, launch.world_size);
  return launch;
}

Session start_session(CommandContext& context, std::unique_ptr<Resolved> resolved, const Launch& launch,
                      bool outlives_ranks) {
  const Mesh mesh = Mesh::from_options(resolved->config.parallel, launch.world_size);
  if (launch.world_size > 1) {
    // "rank 5 dp1 tp1 pp0", without the number
    const std::string position = mesh.describe(launch.rank);
    const size_t space = position.find(' ', sizeof("rank"));
    context.log.set_rank(launch.rank, launch.world_size, space == std::string::npos ? "" : position.substr(space + 1));
  }
  set_log_level(context.log, resolved->config.log);
  for (const std::string& note : resolved->notes) context.log.note("{}", note);
  for (const auto& [name, value] : resolved->exports) ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  const RuntimeOptions& runtime = resolved->config.runtime;
  manage_cpu_memory();
  const int threads = set_num_threads(runtime.threads, launch.local_world_size);
  if (const auto note = choose_thread_waiting(processor_share(threads, launch.local_world_size))) {
    context.log.note("{}", *note);
  }
  enable_amx();
  const ParallelOptions& parallel = resolved->config.parallel;
  std::vector<GpuSettingInForce> gpu_settings = apply_gpu_settings(wanted_gpu_settings(
      gpu_setting_facts(runtime.device.device, narrow<int>(parallel.tensor_model_parallel_size),
                        resolved->derived.data_parallel.use_torch_fsdp2, launch.world_size)));
  if (runtime.device.deterministic_mode) set_deterministic(true);
  const at::Device device = select_device(runtime.device.device, launch.local_rank);
  ops::gpu::set_gemm_tuning(runtime.gemm_tuning, device);
  if (resolved->derived.dtype == at::kBFloat16 && !has_native_bf16(device)) {
    context.log.note("bf16 is emulated on this processor, and slower than fp32");
  }
  check_device(*resolved, device, context.log);
  if (launch.world_size == 1) {
    return {.resolved = std::move(resolved),
            .world = nullptr,
            .groups = Groups::single(),
            .device = device,
            .gpu_settings = std::move(gpu_settings),
            .log = &context.log,
            .config_root = context.config_root};
  }
  const Stopwatch meeting;
  auto world = meet_ranks(context, *resolved, launch, device, outlives_ranks);
  for (const std::string& note : world->notes()) context.log.note("{}", note);
  std::shared_ptr<CollectiveWatch> watch;
  GroupFactory factory = world->factory();
  if (resolved->config.train.faults.check_determinism > 0) {
    watch = std::make_shared<CollectiveWatch>();
    factory = watched_factory(std::move(factory), watch);
  }
  Groups groups = outlives_ranks ? Groups::single() : Groups(mesh, launch.rank, factory);
  return {std::move(resolved),     std::move(world), std::move(groups),    device,
          std::move(gpu_settings), &context.log,     meeting.elapsed_ms(), std::move(watch),
          context.config_root};
}

void share_failure(C10dWorld& world, const std::exception& error, Logger& log) {
  const int rank = world.rank(), world_size = world.size();
  world.report_failure(error.what());
  const std::vector<int> same = world.ranks_that_end_with(error.what());
  if (same.front() != rank) throw SilentExit{exit_code_of(error), error.what()};
  if (std::ssize(same) == world_size) {
    log.set_rank(/*rank=*/0, /*world_size=*/1);  // common to all ranks: no rank in the message
  } else if (same.size() > 1) {
    log.set_rank(rank, world_size, fmt::format("and {}", fmt::join(same.begin() + 1, same.end(), ", ")));
  }
}

void share_early_failure(const CommandContext& context, const Launch& launch, const std::exception& error) {
  const auto world = meet_to_leave(context, launch, error.what());
  // Without ranks to agree with, this rank speaks for itself.
  if (world) share_failure(*world, error, context.log);
}

void tell_dry_run(const CommandContext& context, const Launch& launch) {
  constexpr std::string_view kReason = "it has dry_run, and trains nothing";
  if (const auto world = meet_to_leave(context, launch, kReason)) world->report_failure(kReason);
}

std::string Session::device_text() const {
  std::string text = describe_device(device);
  if (device.is_cpu() || gpu_settings.empty()) return text;
  return fmt::format("{}\n{}", text, gpu_settings_text(gpu_settings));
}

void Session::finish() {
  if (world) world->finish();
}

}  // namespace megalith
