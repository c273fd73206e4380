#pragma once

#include <string>
#include <vector>

namespace llm {

struct ChartSeries {
  enum class Kind {
    kLine,       // joined; many points become a line of means within a band from least to greatest
    kMarkers,    // joined, with a dot at each point
    kReference,  // a dashed level, `y[0]`, across the chart
  };
  std::string name;
  Kind kind = Kind::kLine;
  int colour = 1;         // 1 to 3: a colour of the page's style sheet
  std::vector<double> x;  // rising
  std::vector<double> y;  // points that are not finite are left out
};

struct Chart {
  std::string title;
  std::string x_title;
  std::string y_title;  // with the unit
  std::vector<ChartSeries> series;
  bool from_zero = false;  // the y axis begins at 0
};

// Levels that label [low, high] well: multiples of 1, 2 or 5 times a power of ten, about `count`.
// REQUIRES: low < high, count >= 1.
std::vector<double> Ticks(double low, double high, int count);

// A figure element with a heading, a legend and the plot as inline SVG in two widths, of which the
// page's style sheet shows one. Where scripts run, pointing at it reads values out; nothing is
// fetched.
std::string ChartHtml(const Chart& chart, int wide_width, int height);

}  // namespace llm
