// megalith bench ops: every operator at a model's sizes.
#include "bench/bench.h"
#include "bench/cases.h"
#include "bench/report.h"
#include "cli/session.h"

namespace megalith {
CommandOptions bench_ops_options() { return options_of<BenchOptions, Config>("bench ops"); }

int bench_ops(CommandContext& context) {
  BenchOptions options;
  std::unique_ptr<Resolved> resolved = resolve_bench(context, options);
  if (resolved->wants_help) {
    return print_bench_help(context, *resolved, "megalith bench ops [--config FILE] [--option value ...]");
  }
  const OperatorShape shape = operator_shape(*resolved);
  const Session session = start_session(context, std::move(resolved));
  const at::ScalarType dtype = session.resolved->derived.dtype;
  const BenchTensors tensors(dtype, session.device);
  const std::vector<BenchCase> cases = operator_cases(shape, tensors);
  const std::vector<BenchMeasurement> measured =
      measure_cases(cases, "bench ops", session.device, options.iterations, options.warmup, context.log);
  BenchReport report{"ops", session.device, dtype, {}, {}};
  report.explanations = {
      how_measured(options),
      "GB/s: what an ideal pass moves, every input read once and every result written once, over the time; where a "
      "product\nis computed, TFLOP/s says more"};
  for (const BenchMeasurement& m : measured) {
    for (size_t i = 0; i < m.times.size(); ++i) {
      BenchRow row = measured_row(m, i);
      row.push_back(ratio_cell(m, i, "reference"));
      report.rows.push_back(std::move(row));
    }
  }
  write_bench_report(report, options);
  return kExitSuccess;
}

}  // namespace megalith
