CREATE TABLE regions (
    region_id int PRIMARY KEY,
    name text NOT NULL,
    currency text NOT NULL
);
COMMENT ON TABLE regions IS 'Sales regions. Customers and employees belong to one.';
COMMENT ON COLUMN regions.region_id IS 'Identifies the region.';
COMMENT ON COLUMN regions.name IS 'Such as Nordics, Iberia or Alps.';
COMMENT ON COLUMN regions.currency IS 'ISO 4217 code that customers of the region see; all amounts in this database are in EUR.';

CREATE TABLE employees (
    employee_id int PRIMARY KEY,
    full_name text NOT NULL,
    title text NOT NULL,
    region_id int NOT NULL,
    manager_id int,
    hired_on date NOT NULL
);
COMMENT ON TABLE employees IS 'Sales and support staff.';
COMMENT ON COLUMN employees.employee_id IS 'Identifies the employee.';
COMMENT ON COLUMN employees.full_name IS 'First and last name; invented.';
COMMENT ON COLUMN employees.title IS 'Regional manager, Sales representative or Support agent.';
COMMENT ON COLUMN employees.region_id IS 'The region they work for.';
COMMENT ON COLUMN employees.manager_id IS 'The employee they report to; null for regional managers.';
COMMENT ON COLUMN employees.hired_on IS 'First day at work.';

CREATE TABLE suppliers (
    supplier_id int PRIMARY KEY,
    name text NOT NULL,
    country text NOT NULL,
    lead_time_days int NOT NULL
);
COMMENT ON TABLE suppliers IS 'Who makes the products.';
COMMENT ON COLUMN suppliers.supplier_id IS 'Identifies the supplier.';
COMMENT ON COLUMN suppliers.name IS 'The company; invented.';
COMMENT ON COLUMN suppliers.country IS 'Where it delivers from.';
COMMENT ON COLUMN suppliers.lead_time_days IS 'Days from a purchase order to its arrival.';

CREATE TABLE categories (
    category_id int PRIMARY KEY,
    name text NOT NULL
);
COMMENT ON TABLE categories IS 'Product categories.';
COMMENT ON COLUMN categories.category_id IS 'Identifies the category.';
COMMENT ON COLUMN categories.name IS 'Such as Kettles, Cookware or Office.';

CREATE TABLE products (
    product_id int PRIMARY KEY,
    sku text NOT NULL UNIQUE,
    name text NOT NULL,
    category_id int NOT NULL,
    supplier_id int NOT NULL,
    list_price numeric(10, 2) NOT NULL,
    unit_cost numeric(10, 2) NOT NULL,
    launched_on date NOT NULL
);
COMMENT ON TABLE products IS 'What is sold.';
COMMENT ON COLUMN products.product_id IS 'Identifies the product.';
COMMENT ON COLUMN products.sku IS 'Stock keeping unit: the article number on the shelf.';
COMMENT ON COLUMN products.name IS 'As the shop shows it.';
COMMENT ON COLUMN products.category_id IS 'The category it is listed in.';
COMMENT ON COLUMN products.supplier_id IS 'The supplier who makes it.';
COMMENT ON COLUMN products.list_price IS 'EUR per unit before any discount.';
COMMENT ON COLUMN products.unit_cost IS 'EUR per unit paid to the supplier.';
COMMENT ON COLUMN products.launched_on IS 'First day on sale.';

CREATE TABLE customers (
    customer_id int PRIMARY KEY,
    name text NOT NULL,
    segment text NOT NULL CHECK (segment IN ('consumer', 'small business', 'enterprise')),
    email text NOT NULL,
    region_id int NOT NULL,
    created_on date NOT NULL
);
COMMENT ON TABLE customers IS 'Who buys. Invented people and companies.';
COMMENT ON COLUMN customers.customer_id IS 'Identifies the customer.';
COMMENT ON COLUMN customers.name IS 'A person, or a company for small business and enterprise.';
COMMENT ON COLUMN customers.segment IS 'consumer, small business or enterprise.';
COMMENT ON COLUMN customers.email IS 'Address of a domain that is reserved for examples.';
COMMENT ON COLUMN customers.region_id IS 'The region whose staff serve them; sales by region go by this.';
COMMENT ON COLUMN customers.created_on IS 'Day of registration.';

CREATE TABLE orders (
    order_id int PRIMARY KEY,
    customer_id int NOT NULL,
    employee_id int,
    channel text NOT NULL CHECK (channel IN ('web', 'phone', 'partner')),
    status text NOT NULL CHECK (status IN ('delivered', 'cancelled', 'processing')),
    ordered_at timestamptz NOT NULL
);
COMMENT ON TABLE orders IS 'One row per order, 2024-01-01 to 2025-12-31 UTC.';
COMMENT ON COLUMN orders.order_id IS 'Identifies the order.';
COMMENT ON COLUMN orders.customer_id IS 'Who ordered.';
COMMENT ON COLUMN orders.employee_id IS 'The sales representative who took a phone order; null on other channels.';
COMMENT ON COLUMN orders.channel IS 'How it came in: web, phone or partner.';
COMMENT ON COLUMN orders.status IS 'delivered, cancelled (before shipment, not paid) or processing (not shipped yet).';
COMMENT ON COLUMN orders.ordered_at IS 'When it was placed.';

CREATE TABLE order_items (
    order_item_id int PRIMARY KEY,
    order_id int NOT NULL,
    line_number int NOT NULL,
    product_id int NOT NULL,
    quantity int NOT NULL CHECK (quantity > 0),
    unit_price numeric(10, 2) NOT NULL,
    discount_percent int NOT NULL CHECK (discount_percent BETWEEN 0 AND 100)
);
COMMENT ON TABLE order_items IS 'The lines of an order. Revenue of a line: quantity * unit_price * (100 - discount_percent) / 100.';
COMMENT ON COLUMN order_items.order_item_id IS 'Identifies the line.';
COMMENT ON COLUMN order_items.order_id IS 'The order that the line belongs to.';
COMMENT ON COLUMN order_items.line_number IS 'Place within the order, from 1.';
COMMENT ON COLUMN order_items.product_id IS 'What was bought.';
COMMENT ON COLUMN order_items.quantity IS 'Units bought.';
COMMENT ON COLUMN order_items.unit_price IS 'EUR per unit before the discount.';
COMMENT ON COLUMN order_items.discount_percent IS 'Discount on the line, 0 to 100 percent of unit_price.';

CREATE TABLE shipments (
    shipment_id int PRIMARY KEY,
    order_id int NOT NULL UNIQUE,
    carrier text NOT NULL,
    shipped_at timestamptz NOT NULL,
    promised_on date NOT NULL,
    delivered_at timestamptz NOT NULL
);
COMMENT ON TABLE shipments IS 'One row per shipped order.';
COMMENT ON COLUMN shipments.shipment_id IS 'Identifies the shipment.';
COMMENT ON COLUMN shipments.order_id IS 'The order that was shipped.';
COMMENT ON COLUMN shipments.carrier IS 'The company that carried it.';
COMMENT ON COLUMN shipments.shipped_at IS 'When it left the warehouse.';
COMMENT ON COLUMN shipments.promised_on IS 'The last day on which delivery was promised; later is late.';
COMMENT ON COLUMN shipments.delivered_at IS 'When it arrived.';

CREATE TABLE payments (
    payment_id int PRIMARY KEY,
    order_id int NOT NULL,
    method text NOT NULL CHECK (method IN ('card', 'transfer', 'wallet')),
    status text NOT NULL CHECK (status IN ('captured', 'failed')),
    amount numeric(12, 2) NOT NULL,
    paid_at timestamptz NOT NULL
);
COMMENT ON TABLE payments IS 'Attempts to pay an order. An order should have one captured payment.';
COMMENT ON COLUMN payments.payment_id IS 'Identifies the attempt.';
COMMENT ON COLUMN payments.order_id IS 'The order that was to be paid.';
COMMENT ON COLUMN payments.method IS 'card, transfer or wallet.';
COMMENT ON COLUMN payments.status IS 'captured (money taken) or failed (none taken).';
COMMENT ON COLUMN payments.amount IS 'EUR.';
COMMENT ON COLUMN payments.paid_at IS 'When it was tried.';

CREATE TABLE returns (
    return_id int PRIMARY KEY,
    order_item_id int NOT NULL UNIQUE,
    quantity int NOT NULL CHECK (quantity > 0),
    reason text NOT NULL,
    returned_on date NOT NULL,
    refund_amount numeric(12, 2) NOT NULL
);
COMMENT ON TABLE returns IS 'Order lines that came back.';
COMMENT ON COLUMN returns.return_id IS 'Identifies the return.';
COMMENT ON COLUMN returns.order_item_id IS 'The order line that came back.';
COMMENT ON COLUMN returns.quantity IS 'Units sent back.';
COMMENT ON COLUMN returns.reason IS 'damaged, wrong item, changed mind, too late, leaks or defective.';
COMMENT ON COLUMN returns.returned_on IS 'Day on which the goods came back and the refund was made.';
COMMENT ON COLUMN returns.refund_amount IS 'Money refunded to the customer, EUR.';

CREATE TABLE support_tickets (
    ticket_id int PRIMARY KEY,
    customer_id int NOT NULL,
    order_id int NOT NULL,
    agent_id int NOT NULL,
    subject text NOT NULL,
    priority text NOT NULL CHECK (priority IN ('low', 'normal', 'high')),
    opened_at timestamptz NOT NULL,
    closed_at timestamptz,
    satisfaction int CHECK (satisfaction BETWEEN 1 AND 5)
);
COMMENT ON TABLE support_tickets IS 'What customers asked about an order.';
COMMENT ON COLUMN support_tickets.ticket_id IS 'Identifies the ticket.';
COMMENT ON COLUMN support_tickets.customer_id IS 'Who asked.';
COMMENT ON COLUMN support_tickets.order_id IS 'The order it is about.';
COMMENT ON COLUMN support_tickets.agent_id IS 'The employee who handles it.';
COMMENT ON COLUMN support_tickets.subject IS 'What it is about, such as a complaint or a missing part.';
COMMENT ON COLUMN support_tickets.priority IS 'low, normal or high.';
COMMENT ON COLUMN support_tickets.opened_at IS 'When the customer asked.';
COMMENT ON COLUMN support_tickets.closed_at IS 'Null while it is open.';
COMMENT ON COLUMN support_tickets.satisfaction IS '1 (bad) to 5 (good), given by the customer after closing; often null.';
