// megalith generate for image models: PNG files from a caption.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/session.h"
#include "config/option.h"
#include "core/error.h"
#include "kinds/flow/flux_encoders.h"

namespace megalith {

struct PictureOptions {
  std::optional<int64_t> steps;  // unset: 28 with a guidance embedder, else 4
  double guidance = 3.5;
  int64_t height = 1024, width = 1024;
  std::optional<std::string> output;

  void visit(OptionVisitor& v);
};

// A request for pictures.
struct PictureTask {
  PictureOptions options;
  std::string prompt;
  int64_t num_samples = 1;
  uint64_t seed = 0;
};

// All errors, before anything is read or allocated.
std::vector<UserError> check_picture_task(const Resolved& run, const PictureTask& task);

// Within a session, on every rank; the first one writes the files.
int generate_pictures(CommandContext& context, const Session& session, const Launch& launch, const PictureTask& task);

}  // namespace megalith
