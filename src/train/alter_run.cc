#include "train/alter_run.h"

namespace megalith {

std::unique_ptr<Resolved> alter_run(const Resolved& run, const std::function<void(Resolved&)>& change,
                                    int64_t world_size, std::vector<UserError>& errors) {
  auto copy = std::make_unique<Resolved>(run.kinds);
  for (const auto& option : copy->options->options()) option->take(*run.options->find(option->name()));
  Config& config = copy->config;
  config.tokenizer = {};
  config.checkpoint = {};
  config.samples = {};
  config.model.vocab_size = run.derived.vocab_size;
  config.train.dry_run = false;
  change(*copy);
  derive_and_check(*copy, world_size, errors);
  return copy;
}

}  // namespace megalith
