// See sft.h.
#include "tasks/sft.h"

#include "data/sft_batches.h"

namespace megalith {

DataSets Sft::open_data(const DataOptions& options, const DataSetup& setup, Logger& log) const {
  return make_sft_sets(options, setup, log);
}

}  // namespace megalith
