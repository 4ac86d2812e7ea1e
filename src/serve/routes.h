// What the server answers at which path.
#pragma once

#include <string>

#include "serve/http_server.h"
#include "serve/scheduler.h"
#include "serve/server_metrics.h"
#include "serve/text_request.h"

namespace megalith {

// All arguments outlive it. api_key: clients must show it; empty: none is asked for.
HttpServer::Handler make_handler(const ServedModel& model, Scheduler& scheduler, ServerMetrics& metrics,
                                 std::string api_key);

}  // namespace megalith
