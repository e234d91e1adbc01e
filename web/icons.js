// Line icons on a grid of 24.

const paths = {
  plus: "M12 5v14M5 12h14",
  clip: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7l-8.5 8.5a1.6 1.6 0 0 1-2.4-2.3L14.5 7",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13a6.5 6.5 0 0 0 0-13M15.5 15.500L20 20",
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  gear: "M12 9a3 3 0 1 0 0 6a3 3 0 0 0 0-6M12 3v3M12 18v3M3 12h3M18 12h3M5.6 5.600l2.1 2.100M16.3 16.300l2.1 2.100M18.4 5.600l-2.1 2.100M7.7 16.300l-2.1 2.1",
  sliders: "M4 7h10M18 7h2M4 17h2M10 17h10M14 4.500v5M10 14.500v5",
  menu: "M4 6h16M4 12h16M4 18h16",
  close: "M6 6l12 12M18 6L6 18",
  up: "M12 19V5M6 11l6-6 6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.500l4.5 4.500L19 7.5",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  retry: "M19 12a7 7 0 1 1-2-5M19 3v5h-5",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  download: "M12 4v11M7 11l5 5 5-5M5 20h14",
  upload: "M12 16V5M7 9l5-5 5 5M5 20h14",
  tool: "M14 6a4 4 0 0 1 5-1l-3 3 1 2 2 1 3-3a4 4 0 0 1-5 5L9 21l-4-4 8-8a4 4 0 0 1 1-3",
  play: "M8 5l11 7-11 7z",
  alert: "M12 4L3 19h18zM12 10v4M12 16.6v.4",
  key: "M8 11a4 4 0 1 0 0 .1M12 11h9v4M17 11v3",
  chip: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
};

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", paths[name]);
  svg.append(path);
  return svg;
}
