// Source: the hub's API reference, "whoami".
#include "verify/hub_check.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "hub/http.h"
#include "hub/urls.h"

namespace megalith {
namespace {

Finding hub_finding(std::string check, FindingLevel level, std::string found, std::string remedy = "") {
  return {"environment", std::move(check), level, std::move(found), std::move(remedy)};
}

// {"name": "…"}; else empty.
std::string owner_of_token(const std::string& body) {
  try {
    return json_find<std::string>(parse_json(body, "whoami"), "name", "whoami").value_or("");
  } catch (const UserError&) {
    return "";
  }
}

}  // namespace

Findings judge_hub_answer(const HubSettings& settings, int status, const std::string& body) {
  const std::string where = settings.shown_endpoint();
  if (status >= 500 || status == 429) {
    return {hub_finding("hub", FindingLevel::kWarning, fmt::format("{} answers with status {}", where, status),
                        "try again later; what is in the cache is used without asking")};
  }
  Findings all = {hub_finding("hub", FindingLevel::kOk, fmt::format("{} answers", where))};
  const bool is_refused = status == 401 || status == 403;
  if (settings.token.empty()) {
    all.push_back(hub_finding("hub token", FindingLevel::kNote, "none: models behind a licence are refused",
                              "export HF_TOKEN=… once their licence is accepted"));
  } else if (is_refused) {
    all.push_back(hub_finding("hub token", FindingLevel::kError,
                              fmt::format("the token of {} is refused", settings.token_source),
                              "make a new one on the hub's page of access tokens, and set HF_TOKEN to it"));
  } else if (status == 200) {
    const std::string owner = owner_of_token(body);
    all.push_back(hub_finding("hub token", FindingLevel::kOk,
                              fmt::format("that of {} is taken{}", settings.token_source,
                                          owner.empty() ? "" : fmt::format(": it is {}'s", owner))));
  } else {
    // A mirror may have no accounts.
    all.push_back(hub_finding("hub token", FindingLevel::kNote,
                              fmt::format("{} does not tell whether it is taken (status {})", where, status)));
  }
  return all;
}

Findings check_hub(const HubSettings& settings) {
  if (settings.is_offline) {
    return {hub_finding("hub", FindingLevel::kNote, "HF_HUB_OFFLINE is set: only the cache is used")};
  }
  std::string body;
  constexpr size_t kMostBytes = size_t{1} << 16;  // real ones have a few hundred
  const auto keep = [&](const HttpResponse&, std::span<const std::byte> bytes) {
    body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return body.size() < kMostBytes;
  };
  HttpRequest request;
  request.url = settings.endpoint + "/api/whoami-v2";
  request.secret = settings.token;
  request.secret_origin = url_origin(settings.endpoint);
  try {
    HttpClient client({.connect_timeout = settings.patience.connect_timeout,
                       .stall_timeout = settings.patience.stall_timeout,
                       .ca_file = settings.ca_file});
    const int status = client.send(request, keep).status;
    return judge_hub_answer(settings, status, body);
  } catch (const HttpError& error) {
    return {hub_finding("hub", FindingLevel::kError,
                        fmt::format("{} cannot be reached: {}", settings.shown_endpoint(), error.what()),
                        "see the network and https_proxy; or fetch elsewhere, copy the cache and set HF_HUB_OFFLINE=1 "
                        "(docs/hub.md)")};
  } catch (const UserError& error) {  // no libcurl
    return {hub_finding("hub", FindingLevel::kError, error.message(), error.remedy())};
  }
}

}  // namespace megalith
