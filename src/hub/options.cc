#include "hub/options.h"

namespace megalith {

void HubOptions::visit(OptionVisitor& v) {
  v.group("Hugging Face hub", {.acts_in = kWithModel});
  v.field("hub_timeout_minutes", hub_timeout_minutes,
          "Longest wait for an answer of the hub, or for the next bytes of a file, with all tries and pauses, before "
          "the command gives up. One try ends much sooner: see HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT.")
      .unit("minutes")
      .above(0)
      .at_most(10080);
}

}  // namespace megalith
