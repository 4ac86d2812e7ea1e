#include "comm/distribution.h"

namespace megalith {

constinit thread_local DistributionWatch* distribution_watch = nullptr;

}  // namespace megalith
