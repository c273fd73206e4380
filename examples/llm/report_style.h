#pragma once

namespace llm {

// The style sheet of report.html. Colours 1 to 3 of charts are the classes c1 to c3.
extern const char kReportStyle[];

// The script of report.html: reads values out under the pointer. The page is complete without it.
extern const char kReportScript[];

}  // namespace llm
