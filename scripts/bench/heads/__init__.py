"""A model's own prediction heads: files of two shapes (`shapes`), and what drafting with them costs (`heads`)."""
