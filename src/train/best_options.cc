#include "train/best_options.h"

namespace megalith {

void BestOptions::visit(OptionVisitor& v) {
  v.group("Best checkpoint and early end");
  v.field("keep_best", keep_best,
          "Keep the checkpoints of the so many best evaluations, which are saved as they are found, and besides them "
          "only the newest (keep_last, else 1) and those of save_retain_interval.")
      .unit("checkpoints")
      .at_least(1)
      .changes_numbers(false);
  v.field("metric_for_best_model", metric_for_best_model,
          "What an evaluation is judged by: a figure that it shows, such as lm_loss, accuracy or f1; with several "
          "validation sets NAME_loss of one of them. Default: the first loss, of the first set.");
  v.field("greater_is_better", greater_is_better,
          "The higher metric_for_best_model is, the better. Default: unless its name ends with loss.");
  v.field("load_best_model_at_end", load_best_model_at_end,
          "Keep the best checkpoint, and test and export its weights instead of the last ones.");
  v.field("early_stopping_patience", early_stopping_patience,
          "End the run once so many evaluations in a row were no better than the best before them.")
      .unit("evaluations")
      .at_least(1);
  v.field("early_stopping_threshold", early_stopping_threshold,
          "early_stopping_patience: an evaluation is better only if it is so by more than this.")
      .alias("early_stopping_min_delta")
      .at_least(0);
}

std::vector<UserError> check_best_options(const BestOptions& options, bool saves, bool evaluates) {
  std::vector<UserError> errors;
  const char* asked = options.keep_best                ? "keep_best"
                      : options.load_best_model_at_end ? "load_best_model_at_end"
                                                       : "early_stopping_patience";
  if (options.is_on() && !evaluates) {
    errors.emplace_back(std::string(asked) + " is given, and eval_iters turns evaluations off",
                        "set eval_iters to 1 or more, and eval_interval");
  }
  if (options.num_kept() > 0 && !saves) {
    errors.emplace_back(std::string(asked) + " is given, and the run saves no checkpoint", "name a folder with --save");
  }
  const auto check_read = [&](bool is_given, bool is_read, const char* name, const std::string& readers) {
    if (!is_given || is_read) return;
    errors.emplace_back(std::string(name) + " is given, and nothing reads it", "add " + readers + ", or leave it out");
  };
  const char* judges = "keep_best, load_best_model_at_end or early_stopping_patience";
  check_read(options.metric_for_best_model.has_value(), options.is_on(), "metric_for_best_model", judges);
  check_read(options.greater_is_better.has_value(), options.is_on(), "greater_is_better", judges);
  check_read(options.early_stopping_threshold != BestOptions().early_stopping_threshold,
             options.early_stopping_patience.has_value(), "early_stopping_threshold", "early_stopping_patience");
  return errors;
}

}  // namespace megalith
