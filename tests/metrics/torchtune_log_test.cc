// torchtune's lines, as the tools that read them look for them.
#include "metrics/torchtune_log.h"

#include <gtest/gtest.h>

#include "metrics/printed.h"

namespace megalith {
namespace {

StepRecord tune_step(int64_t iteration) {
  StepRecord record;
  record.iteration = iteration;
  record.train_iters = 5;
  record.losses = {{"lm loss", 2.5}};
  record.grad_norm = 0.75;
  record.learning_rate = 3e-6;
  record.elapsed_ms = 500;
  record.tokens = 4096;
  record.loss_tokens = 1024;
  record.num_devices = 2;
  record.memory_peak_bytes = int64_t{3} << 29;
  record.memory_reserved_bytes = int64_t{2} << 30;
  return record;
}

using TunePrinted = test::Printed<TorchtuneLog>;  // options, clips_gradients

TEST(TorchtuneLines, AreThoseOfARun) {
  LogOptions options;
  options.log_file = "out/logs/log_1.txt";
  TunePrinted printed(options, /*clips_gradients=*/false);
  printed.sink.on_step(tune_step(1));
  // 1,024 tokens in the loss, half a second, two devices; 1.5 and 2 GiB.
  EXPECT_EQ(printed.text,
            "Writing logs to out/logs/log_1.txt\n"
            "Step 1 | loss:2.5 lr:3e-06 tokens_per_second_per_gpu:1024.0000 peak_memory_alloc:1.500000 "
            "peak_memory_reserved:2.000000 \n");
}

TEST(TorchtuneLines, StandForStepsThatAreLogged) {
  LogOptions options;
  options.log_interval = 2;
  TunePrinted printed(options, /*clips_gradients=*/true);
  for (int64_t step = 1; step <= 4; ++step) printed.sink.on_step(tune_step(step));
  EXPECT_EQ(printed.text.find("Step 1 |"), std::string::npos);
  EXPECT_NE(printed.text.find("Step 2 | loss:2.5"), std::string::npos);
  EXPECT_EQ(printed.text.find("Step 3 |"), std::string::npos);
  EXPECT_NE(printed.text.find("grad_norm:0.75 \n"), std::string::npos);
  EXPECT_EQ(printed.text.find("Writing logs"), std::string::npos);
}

TEST(TorchtuneLines, AllTokensCountWhereNobodySaysWhich) {
  StepRecord record = tune_step(1);
  record.loss_tokens.reset();
  TunePrinted printed(LogOptions{}, /*clips_gradients=*/false);
  printed.sink.on_step(record);
  EXPECT_NE(printed.text.find("tokens_per_second_per_gpu:4096.0000"), std::string::npos);
}

TEST(TorchtuneLines, AnEvaluationHasItsLoss) {
  TunePrinted printed(LogOptions{}, /*clips_gradients=*/false);
  printed.sink.on_validation({.iteration = 7, .losses = {{"lm loss", 1.25}}});
  EXPECT_EQ(printed.text, "Step 7 | val_loss:1.25 \n");
}

}  // namespace
}  // namespace megalith
