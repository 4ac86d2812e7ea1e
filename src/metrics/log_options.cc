// See log_options.h.
#include "metrics/log_options.h"

#include "core/option.h"

namespace megalith {

void LogOptions::visit(OptionVisitor& v) {
  v.group("Logging");
  v.field("log_interval", log_interval, "Steps from one iteration line to the next.").unit("iterations").at_least(1);
  v.field("log_throughput", log_throughput, "Memory, TFLOP/s and tokens/s in the iteration line.");
  v.field("log_avg_skip_iterations", log_avg_skip_iterations,
          "Iterations at the start that the averages in the iteration line leave out.")
      .unit("iterations")
      .at_least(0);
  v.field("log_avg_reset_interval", log_avg_reset_interval, "Iteration lines after which those averages start anew.")
      .unit("lines")
      .at_least(1);
  v.field("metrics_file", metrics_file, "A file to append one JSON object an optimizer step to.");
  v.field("loss_plot_file", loss_plot_file, "A file for a picture (SVG) of the loss over the run.");
}

}  // namespace megalith
